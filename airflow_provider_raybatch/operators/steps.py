# SPDX-License-Identifier: Apache-2.0
"""The argument `steps`: what templates leave as text gets its type, and mistakes name their step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.argument_fields import check_names
from airflow_provider_raybatch.coercion import (
    SAMPLING_TYPES,
    from_text,
    is_absent,
    typed,
    typed_values,
    with_structures,
)
from airflow_provider_raybatch.contract.arguments.prompt import PROMPTS
from airflow_provider_raybatch.contract.arguments.response_schema import (
    kind_of_values,
    properties_of,
    unwrapped,
)
from airflow_provider_raybatch.contract.arguments.steps import LIST_OPERATORS, StepArguments
from airflow_provider_raybatch.contract.base import parse, shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import NOT_ARGUMENTS, BatchInferenceSpec

_FIELDS = tuple(StepArguments.model_fields)
_NOT_OF_STEPS = frozenset(BatchInferenceSpec.model_fields) - NOT_ARGUMENTS - set(_FIELDS)
_COLLECTIONS = ("messages", "images", "sampling", "tools", "tool_choice", "response_format", "when")
_OWN_KINDS = {
    **dict.fromkeys(("response", "finish_reason", "rejected", "reasoning"), "text"),
    **dict.fromkeys(("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"), "a number"),
    "candidate": "a number",
}
"""What columns of each step hold."""
_OTHER = "a list, an object or JSON text"
_PYTHON_TYPES = {"a number": (int, float), "true or false": (bool,), "text": (str,), _OTHER: (str,)}


def typed_steps(steps: Any) -> list[dict[str, Any]]:
    """The steps as plain dictionaries, without what counts as not given.

    :raises SpecError: one can't be used; the sentence names the step.
    """
    if not isinstance(steps, (list, tuple)) or not steps:
        raise SpecError(f"steps: it must be a list of at least one step, but it is {shown(steps)}.")
    found = [_typed(from_text(step), number) for number, step in enumerate(steps)]
    kinds: dict[str, str] = {}
    for step in found:
        where = f"steps: {step['name']}: when"
        if "when" in step:
            step["when"] = [_converted(one, kinds, where) for one in step["when"]]
        kinds |= _kinds_of_columns(step)
    return found


def fields_of_steps(steps: Any) -> Iterator[tuple[str, Any]]:
    """Each argument of each step, with the start of a sentence about it; of another value, only itself.

    :raises SpecError: a class stands for its JSON schema.
    """
    for number, step in enumerate(steps if isinstance(steps, (list, tuple)) else [steps]):
        if not isinstance(step, Mapping):
            yield "steps", step
            continue
        for name, value in step.items():
            where = f"{_where(step, number)}: {name}"
            if isinstance(value, type) and hasattr(value, "model_json_schema"):
                raise SpecError(
                    f"{where}: the class {value.__name__!r} does not travel with a step; give its schema, "
                    f"{value.__name__}.model_json_schema()."
                )
            yield where, value


def _where(step: Mapping[str, Any], number: int) -> str:
    """The start of a sentence about a step, which stays on one line."""
    name = step.get("name")
    return f"steps: {name if isinstance(name, str) and name and name.isprintable() else number}"


def _typed(step: Any, number: int) -> dict[str, Any]:
    if not isinstance(step, Mapping):
        example = "Step('draft', prompt='...')"
        raise SpecError(f"steps: {number}: it must be a step, such as {example}, but it is {shown(step)}.")
    where = _where(step, number)
    for key in step:
        if key in PROMPTS and key not in _FIELDS:
            raise SpecError(f"{where}: {key}: a step asks by prompt or messages; use one of them.")
        if key in _NOT_OF_STEPS:
            raise SpecError(f"{where}: {key}: all steps share it; give it to the task instead.")
    check_names(step, _FIELDS, f"{where}: ")
    given = {key: value for key, value in step.items() if not is_absent(value)}
    given |= {key: from_text(given[key]) for key in _COLLECTIONS if key in given}
    if "sampling" in given:
        sampling = with_structures(given["sampling"])
        given["sampling"] = typed_values(sampling, SAMPLING_TYPES, f"{where}: sampling")
    if isinstance(when := given.get("when"), (list, tuple)):
        is_one = bool(when) and isinstance(when[0], str) and from_text(when[0]) is when[0]
        given["when"] = [_listed(from_text(one)) for one in ([when] if is_one else when)]
    try:
        parse(StepArguments, given)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    return given


def _listed(condition: Any) -> Any:
    """A condition with the list that a template has left as text."""
    if isinstance(condition, (list, tuple)) and len(condition) == 3 and condition[1] in LIST_OPERATORS:
        return [*condition[:2], from_text(condition[2])]
    return condition


def _converted(condition: Sequence[Any], kinds: Mapping[str, str], where: str) -> list[Any]:
    """A condition whose values have the kind of its column, where that is known.

    :raises SpecError: a value has another kind, so that no row would ever fulfil the condition.
    """
    kind = kinds.get(str(condition[0]).lower())
    if kind is None or len(condition) < 3:
        return list(condition)
    column, operator, value = condition
    values = [_as_kind(one, kind) for one in (value if operator in LIST_OPERATORS else [value])]
    for one in values:
        types = _PYTHON_TYPES[kind]
        if not isinstance(one, types) or (isinstance(one, bool) and bool not in types):
            raise SpecError(
                f"{where}: {column!r} is {kind}, so no row fulfils a comparison with {shown(one)}; correct "
                "the value."
            )
    return [column, operator, values if operator in LIST_OPERATORS else values[0]]


def _as_kind(value: Any, kind: str) -> Any:
    """The number or boolean whose text a template has left; anything else as it is."""
    if not isinstance(value, str) or kind in ("text", _OTHER):
        return value
    for as_type in (bool,) if kind == "true or false" else (int, float):
        try:
            return typed(value, as_type, "when")
        except SpecError:
            continue
    return value


def _kinds_of_columns(step: Mapping[str, Any]) -> dict[str, str]:
    """What the columns of a step hold, by their names in lower case, as far as it is known."""
    schema = step.get("response_format")
    named = dict(_OWN_KINDS)
    if isinstance(schema, Mapping):
        try:
            root = unwrapped(schema)
            properties = properties_of(root) if isinstance(root, Mapping) else {}
        except ValueError:
            properties = {}  # the spec refuses it
        named |= {name: kind_of_values(part, root) or _OTHER for name, part in properties.items()}
    return {f"{step['name']}_{name}".lower(): kind for name, kind in named.items()}
