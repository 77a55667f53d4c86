# SPDX-License-Identifier: Apache-2.0
"""From an operator's flat arguments to the job's spec: each mistake is a sentence in the operator's words."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow.sdk import ObjectStoragePath
from pydantic import ValidationError
from pydantic_core import to_json

from airflow_provider_raybatch.coercion import (
    ENGINE_ARG_TYPES,
    SAMPLING_TYPES,
    is_absent,
    seconds,
    typed_values,
)
from airflow_provider_raybatch.contract.base import sentence, shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

ARGUMENTS = (
    "source", "format", "limit", "id_column",
    "prompt", "system_prompt", "messages", "messages_column", "prompt_column", "prompt_function",
    "model", "chat_template", "chat_template_kwargs", "sampling", "sampling_column", "response_format",
    "on_truncated",
    "engine", "engine_args", "replicas", "accelerator_type", "num_cpus", "rows_in_flight", "batch_size",
    "processor", "max_restarts",
    "destination", "destination_format", "rows_per_part", "on_destination_owned", "output_prefix",
    "response_column", "postprocess", "preserve_order",
    "reuse", "reuse_max_age", "deduplicate", "on_clear",
    "max_error_fraction", "max_errors", "max_row_attempts", "max_tokens_total", "max_gpu_hours",
    "flush_interval", "no_progress_timeout", "cluster_wait", "orphan_timeout",
)  # fmt: skip
"""The arguments that make up the spec, in the order of the documentation."""

TEMPLATED = tuple(name for name in ARGUMENTS if name != "chat_template")
"""Those that Airflow renders; a chat template is Jinja of the model's."""

_ENGINE_FIELDS = (
    "replicas", "accelerator_type", "num_cpus", "rows_in_flight", "batch_size", "processor", "max_restarts",
)  # fmt: skip
_COUNTED_LIMITS = (
    "max_error_fraction", "max_errors", "max_row_attempts", "max_tokens_total", "max_gpu_hours",
)  # fmt: skip
_ENGINES_WITH_MODEL = ("vllm", "ray_data_llm")
_LIMITS_IN_SECONDS = ("flush_interval", "no_progress_timeout", "cluster_wait", "orphan_timeout")
_PROMPTS = ("prompt", "messages", "messages_column", "prompt_column", "prompt_function")
_WITH_SYSTEM_PROMPT = ("prompt", "messages_column", "prompt_function")

_ARGUMENT_OF_FIELD = {
    "source.paths": "source",
    "source.format": "format",
    "destination.uri": "destination",
    "destination.format": "destination_format",
    "destination.on_owned_by_other": "on_destination_owned",
    "engine.kind": "engine",
    "engine.args": "engine_args",
    "model.name": "model",
    "prompt.template": "prompt",
    "prompt.function": "prompt_function",
    "response_format.json_object": "response_format",
    "response_format.truncated": "on_truncated",
    "postprocess.function": "postprocess",
    "reuse.uri": "reuse",
    "reuse.max_age": "reuse_max_age",
}
_KEPT_AS_TEXT = frozenset({
    "source", "prompt", "messages", "messages_column", "prompt_column", "prompt_function", "model",
    "destination", "chat_template",
})  # fmt: skip
"""Arguments whose text may be anything, so that "None" is a value of theirs."""
_EMPTY_IS_NONE = frozenset({
    "limit", "format", "system_prompt", "reuse", "replicas", "num_cpus", "rows_in_flight", "batch_size",
    "max_restarts", "rows_per_part", "preserve_order", "deduplicate", *_COUNTED_LIMITS,
})  # fmt: skip
_TYPED = {"sampling": SAMPLING_TYPES, "engine_args": ENGINE_ARG_TYPES}
_FREE_FORM = ("sampling", "engine_args", "processor", "chat_template_kwargs")
_GROUPS = ("source", "destination", "engine", "model", "prompt", "limits")
_FIELD = re.compile(r"^([A-Za-z_][\w.]*): ")
_PATHS = (str, os.PathLike, ObjectStoragePath)
_OBJECT_STORAGE_CONNECTION = re.compile(r"^(s3://)[^/@]*@")


def build_spec(arguments: Mapping[str, Any]) -> BatchInferenceSpec:
    """The spec for these arguments. They are rendered already, and stay untouched.

    :param arguments: some or all of :data:`ARGUMENTS`; ``None`` counts as not given.
    :raises SpecError: the first mistake, in the operator's words.
    """
    check_names(arguments)
    given = {name: _absent_if_empty(name, value) for name, value in arguments.items()}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        _check_text(value, name)
    for name in _FREE_FORM:
        _check_plain(given.get(name), name)
    for name, types in _TYPED.items():
        given |= _some(**{name: typed_values(given.get(name), types, name)})
    paths, format_of_source = _source(
        _needed(given, "source", "name a file, a folder, a glob or a list of them")
    )
    prompt_kind, prompt = _prompt(given)
    data = {
        "source": _section(given, "limit", "id_column")
        | {"paths": paths}
        | _some(format=given.get("format", format_of_source)),
        "prompt": prompt,
        "model": _section(given, "chat_template", "chat_template_kwargs") | {"name": _model(given)},
        "engine": _section(given, *_ENGINE_FIELDS)
        | _some(kind=given.get("engine"), args=given.get("engine_args")),
        "destination": _section(given, "rows_per_part", "output_prefix", "response_column")
        | {"uri": _location(_needed(given, "destination", "name a folder"), "destination")}
        | _some(format=given.get("destination_format"), on_owned_by_other=given.get("on_destination_owned")),
        "limits": _section(given, *_COUNTED_LIMITS)
        | _some(**{name: seconds(given.get(name), name) for name in _LIMITS_IN_SECONDS}),
        "response_format": _response_format(given.get("response_format"))
        | _some(truncated=given.get("on_truncated")),
        "postprocess": {"function": given["postprocess"]} if "postprocess" in given else None,
        "reuse": _reuse(given),
        **_section(given, "sampling", "sampling_column", "preserve_order", "deduplicate", "on_clear"),
    }
    try:
        # A copy, since pydantic keeps nested dictionaries of the caller as they are.
        return BatchInferenceSpec.model_validate(copy.deepcopy(data))
    except ValidationError as error:
        raise SpecError(in_the_operators_words(sentence(error), prompt_kind)) from None


def check_names(arguments: Iterable[str], known: Sequence[str] = ARGUMENTS) -> None:
    """Refuse what is no argument.

    :raises SpecError: names the first unknown one and the likeliest meant.
    """
    import difflib

    for name in arguments:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}."
            raise SpecError(f"{name}: there is no such argument; {remedy}")


def in_the_operators_words(text: str, prompt_kind: str = "prompt") -> str:
    """A sentence about the spec's fields as one about the operator's arguments."""
    match = _FIELD.match(text)
    if match is None:
        return text
    field, rest = match.group(1), text[match.end() :]
    if field == "function":
        return f"prompt_function: {rest}"
    for spec_field, argument in (*_ARGUMENT_OF_FIELD.items(), ("prompt.column", prompt_kind)):
        if field == spec_field or field.startswith(spec_field + "."):
            return f"{argument}{field[len(spec_field) :]}: {rest}"
    group, _, name = field.partition(".")
    if group in _GROUPS and name:
        return f"{name}: {rest}"
    if group in _GROUPS and _FIELD.match(rest):
        return rest  # a rule over several fields, whose message names the field itself
    return text


def _needed(given: Mapping[str, Any], name: str, remedy: str) -> Any:
    if name not in given:
        raise SpecError(f"{name}: a value is needed here and none was given; {remedy}.")
    return given[name]


def _model(given: Mapping[str, Any]) -> Any:
    if given.get("engine", "vllm") in _ENGINES_WITH_MODEL:  # a misspelt one is blamed itself
        return _needed(given, "model", "name a Hugging Face id or a folder")
    return given.get("model", "echo")


def _absent_if_empty(name: str, value: Any) -> Any:
    # "{{ params.limit or '' }}" renders to an empty text where the template means nothing.
    if value == "" and name not in _EMPTY_IS_NONE:
        return value
    return None if is_absent(value) and name not in _KEPT_AS_TEXT else value


def _check_text(value: Any, name: str) -> None:
    try:
        value.encode() if isinstance(value, str) else None
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{name}: {shown(value)} has half a character at position {error.start}; remove it."
        ) from None


def _check_plain(value: Any, name: str) -> None:
    try:
        # Through text, as it travels: iterators are no plain data, though pydantic takes them.
        to_json(copy.deepcopy(value))
        parts = list(_parts(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            f"{name}: it can't be written as JSON ({error}); use texts, numbers, lists and dictionaries "
            "alone."
        ) from None
    for part in parts:
        if isinstance(part, (set, frozenset)):
            # The job's fingerprint goes by the order, which is another one in each process.
            raise SpecError(
                f"{name}: a set has no order, so each attempt may read it as another job; give a list."
            )
        if isinstance(part, float) and not math.isfinite(part):
            raise SpecError(
                f"{name}: {shown(value)} has the number {part}, which JSON can't hold; remove it."
            )


def _parts(value: Any) -> Iterator[Any]:
    """`value` and all that is inside of it."""
    yield value
    if isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _parts(inner)


def _section(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _some(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _source(value: Any) -> tuple[list[str], str | None]:
    """Paths, and their format where the source is the result of another batch inference."""
    if isinstance(value, _PATHS):
        return [_location(value, "source")], None
    if isinstance(value, Mapping):
        if not isinstance(value.get("uri"), str):
            raise SpecError(
                f"source: {shown(dict(value))} has no 'uri'; give paths, or what another batch task returned."
            )
        return [value["uri"]], value.get("format")
    if not isinstance(value, Iterable) or isinstance(value, (bytes, bytearray)):
        raise SpecError(f"source: {shown(value)} is no path; name a file, a folder, a glob or a list.")
    if isinstance(value, (set, frozenset)):
        # Another order in each process would make another job of each retry.
        raise SpecError(f"source: {shown(value)} is a set, which has no order; make a list of it.")
    paths: list[str] = []
    formats: set[str | None] = set()
    for item in value:
        if isinstance(item, Iterable) and not isinstance(item, (Mapping, *_PATHS)):
            raise SpecError(f"source: {shown(item)} is no path; a list of paths holds texts alone.")
        found, item_format = _source(item)
        paths += found
        formats.add(item_format)
    return paths, formats.pop() if len(formats) == 1 else None


def _location(value: Any, name: str) -> str:
    if not isinstance(value, _PATHS):
        raise SpecError(f"{name}: {shown(value)} is no path; give it as text.")
    # ObjectStoragePath writes its Airflow connection into the text; the cluster knows none.
    return value if isinstance(value, str) else _OBJECT_STORAGE_CONNECTION.sub(r"\1", str(value))


def _prompt(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    kinds = [name for name in _PROMPTS if name in given]
    if len(kinds) != 1:
        what = f"{' and '.join(kinds)} are given together" if kinds else "none is given"
        raise SpecError(f"prompt: exactly one of {', '.join(_PROMPTS)} is needed, but {what}.")
    kind = kinds[0]
    value, system_prompt = given[kind], given.get("system_prompt")
    if system_prompt is not None and kind not in _WITH_SYSTEM_PROMPT:
        remedy = "put a system message into messages" if kind == "messages" else "write it into the column"
        raise SpecError(f"system_prompt: it has no effect together with {kind}; {remedy}.")
    system = _some(system_prompt=system_prompt)
    match kind:
        case "prompt":
            return kind, {"kind": "template", "template": value, **system}
        case "messages":
            return kind, {"kind": "messages", "messages": value}
        case "messages_column":
            return kind, {"kind": "messages_column", "column": value, **system}
        case "prompt_column":
            return kind, {"kind": "prompt_column", "column": value}
        case _:
            return kind, {"kind": "function", "function": value, **system}


def _reuse(given: Mapping[str, Any]) -> dict[str, Any] | None:
    if "reuse" in given:
        max_age = seconds(given.get("reuse_max_age"), "reuse_max_age")
        return {"uri": _location(given["reuse"], "reuse"), **_some(max_age=max_age)}
    if "reuse_max_age" in given:
        raise SpecError("reuse_max_age: it has no effect without reuse; name the folder of a response store.")
    return None


def _response_format(value: Any) -> dict[str, Any]:
    if value is None or value == "text":
        return {}
    if value == "json_object":
        return {"json_object": True}
    raise SpecError(f"response_format: {shown(value)} is unknown; use 'text' or 'json_object'.")
