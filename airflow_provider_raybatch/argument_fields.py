# SPDX-License-Identifier: Apache-2.0
"""The operator's arguments, objects among them, as fields of the spec; and what an unknown one may mean."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
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
from airflow_provider_raybatch.coercion import ENGINE_ARG_TYPES, from_text, is_absent
from airflow_provider_raybatch.contract.arguments.vllm_names import ENGINE_ARGS, SAMPLING
from airflow_provider_raybatch.contract.arguments.vllm_sampling import OTHER_SYSTEMS
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import NOT_ARGUMENTS, BatchInferenceSpec
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
HOMES = {
    name: f"{argument}={kind.__name__}({name}=...)"
    for argument, kinds in GROUPS.items()
    for kind in reversed(kinds)
    for name in _names((kind,))
    if name != argument
}
"""How each field is written that has its place in an object."""


_NO_COLUMN = ("{row", "[{")
"""In a text that was meant as a prompt or a chat, and not as the name of a column."""


def fields_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the job's spec that arguments of the operator give.

    :param arguments: of the operator; ``None`` and empty text count as not given.
    :raises SpecError: an object is not a dictionary, or has a name that it does not take.
    """
    fields: dict[str, Any] = {}
    for argument, value in arguments.items():
        given = from_text(value) if argument in GROUPS else value
        if argument not in GROUPS or is_absent(given):
            fields[argument] = value
        elif isinstance(given, Mapping):
            _check_group(argument, given)
            fields |= {name: one for name, one in given.items() if one is not None}
        elif argument in _ALONE:
            fields[argument] = value
        else:
            raise SpecError(
                f"{argument}: {shown(value)} is not a dictionary; give {GROUPS[argument][0].__name__}(...)."
            )
    messages = from_text(fields.get("messages"))
    if isinstance(messages, str) and messages and not any(sign in messages for sign in _NO_COLUMN):
        fields["messages_column"] = fields.pop("messages")
    return {name: value for name, value in fields.items() if not (name in GROUPS and name not in _ALONE)}


def _check_group(argument: str, given: Mapping[str, Any]) -> None:
    known = FIELDS_OF[argument]
    for name in given:
        if name in known:
            continue
        close = nearest(str(name), known)
        hint = f"did you mean {close!r}?" if close else f"known are {', '.join(known)}."
        if name in BatchInferenceSpec.model_fields.keys() - NOT_ARGUMENTS:
            hint = f"write it as {HOMES.get(name) or f'{argument_of(name)}=... of the task itself'}."
        raise SpecError(f"{argument}: it does not take {shown(name)}; {hint}")


def argument_of(field: str) -> str:
    """The argument of the operator that gives a field of the job's spec."""
    return "messages" if field == "messages_column" else _ARGUMENT_OF.get(field, field)


def over_default(argument: str, default: Any, value: Any) -> Any:
    """An object over a default of it, name by name; `value` itself where one of them is not known yet.

    A task of another kind, and one adapter in place of several, replace their default.
    """
    if is_absent(value):
        return default
    whole, given = _as_group(argument, default), _as_group(argument, value)
    if whole is None or given is None:
        return value
    differs = argument in _KINDS and whole.get(argument) != given.get(argument)
    return value if differs else {**whole, **given}


_KINDS = ("model_task", "adapter")


def _as_group(argument: str, value: Any) -> Mapping[str, Any] | None:
    known = from_text(value)
    if isinstance(known, Mapping):
        return known
    return (
        {argument: known} if argument in _ALONE and isinstance(known, (str, list, tuple, PathLike)) else None
    )


_OURS = {
    **dict.fromkeys(("output", "output_path", "output_uri"), "destination"),
    **dict.fromkeys(("input", "input_path", "path", "inputs", "dataset"), "source"),
    **dict.fromkeys(("num_replicas", "concurrency"), "replicas"),
    **dict.fromkeys(("conn_id", "ray_conn", "connection_id"), "ray_conn_id"),
    **dict.fromkeys(("step", "stages", "chain", "pipeline", "questions"), "steps"),
    "model_id": "model", "model_name": "model", "output_column": "response_column",
}  # fmt: skip

_OF_STEPS = ("when", "on_rejected")


def check_names(arguments: Iterable[str], known: Sequence[str], where: str = "") -> None:
    """Refuse names that are not arguments.

    :param where: the start of the sentence, such as ``Task 'label': ``.
    :raises SpecError: names the first unknown one, and the likeliest meant.
    """
    for name in arguments:
        if name not in known:
            remedy = _remedy(str(name), known)
            raise SpecError(f"{where}{name}: it is not an argument; {remedy}") from None


def _remedy(name: str, known: Sequence[str]) -> str:
    if name in OTHER_SYSTEMS:
        return f"write {OTHER_SYSTEMS[name]}."
    if name in SAMPLING:
        return f"put it into sampling={{{name!r}: ...}}."
    if (home := HOMES.get(name)) is not None and name not in known:
        return f"write it as {home}."
    if name in _OF_STEPS:
        return f"put it into a step, steps=[Step(..., {name}=...)]."
    if name in ENGINE_ARGS or name in ENGINE_ARG_TYPES:
        return f"put it into engine_args={{{name!r}: ...}}."
    close = _OURS.get(name) or nearest(name, [*known, *HOMES])
    if close is None:
        return f"known are {', '.join(known)}."
    return f"did you mean {close!r}?" if close in known else f"did you mean {HOMES[close]}?"
