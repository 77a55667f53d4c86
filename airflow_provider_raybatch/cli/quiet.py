# SPDX-License-Identifier: Apache-2.0
"""Keep out of a verb's output what Airflow logs and warns of, and secrets that templates took from it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

Result = TypeVar("Result")
Value = TypeVar("Value")


def quietly(call: Callable[[], Result]) -> Result:
    """Return or raise what `call` does, without anything that it logs."""
    from airflow.utils.cli import suppress_logs_and_warning

    results: list[Result] = []

    def keep(options: Namespace) -> None:
        results.append(call())

    suppress_logs_and_warning(keep)(Namespace(verbose=False))
    return results[0]


def masked(value: Value) -> Value:
    """`value` with ``***`` for each secret that Airflow knows, in all texts of a document, too."""
    return _masked(value)  # type: ignore[no-any-return]


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        from airflow.sdk.log import redact  # type: ignore[attr-defined]

        return str(redact(value))
    if isinstance(value, BaseModel):
        # Not by redact, which would hide fields by their names, such as `tokens`.
        return value.model_copy(update={name: _masked(inner) for name, inner in value})
    return tuple(map(_masked, value)) if isinstance(value, tuple) else value
