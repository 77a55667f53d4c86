# SPDX-License-Identifier: Apache-2.0
"""From the operator's arguments to the job's spec: each mistake is a sentence in the operator's words.

The cluster checks it again, with what it refers to and with the engine's grammar.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow.sdk import ObjectStoragePath, literal
from pydantic_core import to_json

from airflow_provider_raybatch.argument_fields import argument_of, check_names, fields_of
from airflow_provider_raybatch.coercion import (
    ENGINE_ARG_TYPES,
    POOLING_TYPES,
    SAMPLING_TYPES,
    from_text,
    is_absent,
    listed,
    typed_values,
    with_structures,
)
from airflow_provider_raybatch.contract.arguments.openai_batch import OPENAI_BATCH
from airflow_provider_raybatch.contract.arguments.response_schema import schema_problem
from airflow_provider_raybatch.contract.arguments.sampling import schema_of
from airflow_provider_raybatch.contract.arguments.vllm_sampling import check_vllm_sampling
from airflow_provider_raybatch.contract.base import parse, shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import NOT_ARGUMENTS, BatchInferenceSpec
from airflow_provider_raybatch.operators.steps import fields_of_steps, typed_steps


def check_schemas(spec: BatchInferenceSpec, where: str = "") -> None:
    """Check the JSON schemas of tools and of responses.

    :param where: the start of the sentence.
    :raises SpecError: one is none in any draft that the cluster knows.
    """
    for name, schema in _schemas(spec):
        if schema and "$schema" not in schema and (why := _problem(schema)):
            raise SpecError(f"{where}{name} is not a JSON schema ({why}); correct it.")


def _schemas(spec: BatchInferenceSpec) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    for number, tool in enumerate(spec.tools or ()):
        yield f"tools: {number}: function: parameters", tool["function"].get("parameters")
    argument = "sampling: structured_outputs: json"
    name = argument if spec.response_schema is None else "response_format: the schema"
    yield name, schema_of(spec.sampling.get("structured_outputs"))


def _problem(schema: Mapping[str, Any]) -> str:
    """What is wrong by the newest draft; empty if one draft takes it."""
    from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator, SchemaError  # Airflow's

    first = ""
    for draft in (Draft202012Validator, Draft7Validator, Draft4Validator):
        try:
            # Without formats: Python does not know all patterns that grammars do.
            draft.check_schema(schema, format_checker=None)
        except SchemaError as error:
            first = first or schema_problem(error)
        else:
            return ""
    return first


FIELDS = tuple(name for name in BatchInferenceSpec.model_fields if name not in NOT_ARGUMENTS)
"""The fields of the spec that arguments give."""

ARGUMENTS = tuple(dict.fromkeys(argument_of(name) for name in FIELDS))
"""The arguments of the operator that make up the spec."""

TEXTS = frozenset({
    "id_column", "prompt", "system_prompt", "messages", "prompt_column", "prompt_function", "model",
    "adapter", "accelerator_type", "output_prefix",
})  # fmt: skip
"""Those that are text whatever it looks like."""

_ENGINES_WITH_MODEL = ("vllm", "ray_data_llm")
_LOCATIONS = ("destination", "reuse")
_NEEDED = {
    "source": "name a file, a folder, a glob or a list of them",
    "destination": "name a folder",
    "model": "name a Hugging Face id or a folder",
}
"""What must be given, each with how."""
_TYPED = {"sampling": SAMPLING_TYPES, "pooling": POOLING_TYPES, "engine_args": ENGINE_ARG_TYPES}
_FREE_FORM = (
    "csv_options", "sampling", "pooling", "engine_args", "processor", "chat_template_kwargs",
    "response_format", "adapters", "tools", "tool_choice", "images", "image_roots", "image_hosts", "steps",
)  # fmt: skip
_COLLECTIONS = ("source", "messages", "gpu_hour_price", *_FREE_FORM)
"""Arguments whose text is that of a list or a dictionary, where it looks like one."""
_LITERAL = type(literal(""))
_PATHS = (str, os.PathLike, ObjectStoragePath)
_OBJECT_STORAGE_CONNECTION = re.compile(r"^(s3://)[^/@]*@")


def build_spec(arguments: Mapping[str, Any]) -> BatchInferenceSpec:
    """The spec for rendered arguments, which stay untouched.

    :param arguments: some or all of :data:`ARGUMENTS`; ``None`` counts as not given.
    :raises SpecError: the first mistake, in the operator's words.
    """
    check_names(arguments, ARGUMENTS)
    return spec_of_fields(fields_of(arguments))


def spec_of_fields(arguments: Mapping[str, Any]) -> BatchInferenceSpec:
    """The spec for some or all of :data:`FIELDS`; raises as :func:`build_spec`."""
    check_names(arguments, FIELDS)
    given = {name: listed(value) for name, value in arguments.items() if not is_absent(value)}
    if isinstance(given.get("chat_template"), _LITERAL):  # Airflow does not render it
        given["chat_template"] = given["chat_template"].value
    for name, value in given.items():
        _check_text(value, name)
    given |= {name: from_text(given[name]) for name in _COLLECTIONS if name in given}
    if "sampling" in given:
        given["sampling"] = with_structures(given["sampling"])
    for name in _FREE_FORM:
        if name in given and name != "steps":
            _check_plain(given[name], name)
    if "steps" in given:
        for where, value in fields_of_steps(given["steps"]):
            _check_plain(value, where)
        given["steps"] = typed_steps(given["steps"])
    for name, types in _TYPED.items():
        given |= _some(**{name: typed_values(given.get(name), types, name)})
    if given.get("engine", "vllm") not in _ENGINES_WITH_MODEL:
        given.setdefault("model", "echo")  # also where the engine is misspelt, which is the mistake to name
    for name, remedy in _NEEDED.items():
        if name not in given:
            raise SpecError(f"{name}: a value is needed here and none was given; {remedy}.")
    for name in _LOCATIONS:
        given |= {name: _location(given[name], name)} if name in given else {}
    paths, format_of_source = _source(given["source"])
    # Copies, since pydantic keeps nested dictionaries of the caller as they are.
    own = {name: copy.deepcopy(given[name]) for name in _COLLECTIONS if name in given}
    data = {**_some(format=format_of_source), **given, **own, "source": paths}
    spec = parse(BatchInferenceSpec, data)
    for one in (spec, *(one for one in spec.questions() if one is not spec)):
        _check_request(one)
    return spec


def _check_request(spec: BatchInferenceSpec) -> None:
    """Check what the cluster and its vLLM would refuse of a request."""
    check_schemas(spec, spec.step_prefix)
    if not spec.has_vllm_sampling:
        return
    try:
        check_vllm_sampling(spec.sampling)
    except ValueError as error:
        end = "" if str(error)[-1] == "?" else "."
        raise SpecError(f"{spec.step_prefix}sampling: {str(error).rstrip('.')}{end}") from None


def _check_text(value: Any, name: str) -> None:
    try:
        value.encode() if isinstance(value, str) else None
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{name}: {shown(value)} has half a character at position {error.start}; remove it."
        ) from None


def _check_plain(value: Any, name: str) -> None:
    try:
        to_json(value)  # as it travels
        inner = list(_with_inner(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            f"{name}: it can't be written as JSON ({error}); use texts, numbers, lists and dictionaries "
            "alone."
        ) from None
    for one in inner:
        if isinstance(one, (set, frozenset)):
            # The job's fingerprint goes by the order, which is another one in each process.
            raise SpecError(
                f"{name}: a set has no order, so each attempt may read it as another job; give a list."
            )
        if isinstance(one, float) and not math.isfinite(one):
            raise SpecError(f"{name}: {shown(value)} has the number {one}, which JSON can't hold; remove it.")


def _with_inner(value: Any) -> Iterator[Any]:
    """`value`, and all values inside of it."""
    yield value
    if isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _with_inner(inner)


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
        kind = value.get("format")
        return [value["uri"]], "jsonl" if kind == OPENAI_BATCH else kind  # its lines are answers now
    if not isinstance(value, Iterable) or isinstance(value, (bytes, bytearray)):
        raise SpecError(f"source: {shown(value)} is not a path; name a file, a folder, a glob or a list.")
    if isinstance(value, (set, frozenset)):
        # Another order in each process would make another job of each retry.
        raise SpecError(f"source: {shown(value)} is a set, which has no order; make a list of it.")
    paths: list[str] = []
    formats: set[str | None] = set()
    for item in value:
        if isinstance(item, Iterable) and not isinstance(item, (Mapping, *_PATHS)):
            raise SpecError(f"source: {shown(item)} is not a path; a list of paths holds texts alone.")
        found, item_format = _source(item)
        paths += found
        formats.add(item_format)
    return paths, formats.pop() if len(formats) == 1 else None


def _location(value: Any, name: str) -> str:
    if not isinstance(value, _PATHS):
        raise SpecError(f"{name}: {shown(value)} is not a path; give it as text.")
    # ObjectStoragePath writes its Airflow connection into the text; the cluster knows none.
    return value if isinstance(value, str) else _OBJECT_STORAGE_CONNECTION.sub(r"\1", str(value))
