# SPDX-License-Identifier: Apache-2.0
"""Keep secrets that a task's templates took from Airflow out of what a verb prints."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

Value = TypeVar("Value")


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
