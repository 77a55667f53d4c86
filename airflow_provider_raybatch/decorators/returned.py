# SPDX-License-Identifier: Apache-2.0
"""Keeps what a decorated function returned while its task is deferred; the function is not called again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined] # exported, but missing in the stub file
from airflow.sdk.log import redact  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from airflow_provider_raybatch.operators.run_record import Store

_KEY = "raybatch_returned"
_LONGEST = 4096
"""Characters of one argument; Airflow shows no more of a rendered field either, by default."""


def keep(store: Store, returned: Mapping[str, Any]) -> None:
    """Store the arguments as plain data, without what Airflow masks in rendered fields."""
    plain = {name: _bounded(redact(_plain(value), name)) for name, value in returned.items()}
    store.set(_KEY, plain, retention=NEVER_EXPIRE)


def kept(store: Store) -> dict[str, Any]:
    """The arguments that the attempt's function returned before it was deferred."""
    found = store.get(_KEY)
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return json.loads(json.dumps(value, default=str))


def _bounded(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
