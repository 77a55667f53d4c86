# SPDX-License-Identifier: Apache-2.0
"""From the operator's arguments, some of which are objects, to the fields of the job's spec."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from os import PathLike
from typing import Any

from airflow_provider_raybatch.arguments import (
    Adapters,
    Advanced,
    ArgumentGroup,
    Classify,
    Embed,
    Images,
    Limits,
    Output,
    Reuse,
    Score,
    Tools,
)
from airflow_provider_raybatch.coercion import from_text, is_absent
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import nearest

GROUPS: dict[str, tuple[type[ArgumentGroup], ...]] = {
    "images": (Images,),
    "model_task": (Embed, Classify, Score),
    "adapter": (Adapters,),
    "tools": (Tools,),
    "output_options": (Output,),
    "reuse": (Reuse,),
    "limits": (Limits,),
    "advanced": (Advanced,),
}
"""The arguments of the operator that take an object, each with its classes."""


def _names(kinds: tuple[type[ArgumentGroup], ...]) -> tuple[str, ...]:
    found = [name for kind in kinds for name in list(inspect.signature(kind.__init__).parameters)[1:]]
    return tuple(dict.fromkeys(found))


_ALONE = ("images", "model_task", "adapter", "tools", "reuse")
"""Those that may be a single value in place of the object: the field of their own name."""
FIELDS_OF = {
    argument: tuple(dict.fromkeys([*([argument] if argument in _ALONE else ()), *_names(kinds)]))
    for argument, kinds in GROUPS.items()
}
"""The fields of the job's spec that each of them gives."""
_ARGUMENT_OF = {field: argument for argument, fields in FIELDS_OF.items() for field in fields}
_HOMES = {
    name: f"{argument}={kind.__name__}({name}=...)"
    for argument, kinds in GROUPS.items()
    for kind in reversed(kinds)
    for name in _names((kind,))
    if name != argument
}


def home_of(field: str) -> str | None:
    """How a field is written that has its place in a group; ``None`` for others."""
    return _HOMES.get(field)


def fields_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the job's spec that arguments of the operator give.

    :param arguments: of the operator; ``None`` and empty text count as not given.
    :raises SpecError: a group is no dictionary, or has a name that is none of its own.
    """
    fields: dict[str, Any] = {}
    for argument, value in arguments.items():
        given = from_text(value) if argument in GROUPS else value
        if argument not in GROUPS or is_absent(given):
            fields[argument] = value
        elif isinstance(given, Mapping):
            _check_group(argument, given)
            fields |= given
        elif argument in _ALONE:
            fields[argument] = value
        else:
            raise SpecError(
                f"{argument}: {shown(value)} is no dictionary; give {GROUPS[argument][0].__name__}(...)."
            )
    messages = from_text(fields.get("messages"))
    if isinstance(messages, str) and messages and not messages.lstrip().startswith("["):
        fields["messages_column"] = fields.pop("messages")
    return {name: value for name, value in fields.items() if not (name in GROUPS and name not in _ALONE)}


def _check_group(argument: str, given: Mapping[str, Any]) -> None:
    known = FIELDS_OF[argument]
    for name in given:
        if name in known:
            continue
        close = nearest(str(name), known)
        hint = f"did you mean {close!r}?" if close else f"known are {', '.join(known)}."
        if name in BatchInferenceSpec.model_fields:
            hint = f"write it as {home_of(name) or f'{name}=... of the task itself'}."
        raise SpecError(f"{argument}: {shown(name)} is none of its names; {hint}")


def argument_of(field: str) -> str:
    """The argument of the operator that gives a field of the job's spec."""
    return "messages" if field == "messages_column" else _ARGUMENT_OF.get(field, field)


def over_default(default_args: Mapping[str, Any] | None, argument: str, value: Any) -> Any:
    """An object over that of a DAG's `default_args`, name by name; `value` where one is not known yet."""
    default = _as_group(argument, (default_args or {}).get(argument))
    given = _as_group(argument, value)
    return value if default is None or given is None else {**default, **given}


def _as_group(argument: str, value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        return value
    return (
        {argument: value} if argument in _ALONE and isinstance(value, (str, list, tuple, PathLike)) else None
    )
