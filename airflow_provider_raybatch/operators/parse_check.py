# SPDX-License-Identifier: Apache-2.0
"""Check while a DAG is parsed what no template decides of a batch inference."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any

from airflow_provider_raybatch.argument_fields import FIELDS_OF, GROUPS, fields_of
from airflow_provider_raybatch.contract.arguments.openai_batch import OPENAI_BATCH
from airflow_provider_raybatch.contract.arguments.prompt import PAIRS, PROMPTS
from airflow_provider_raybatch.contract.arguments.task import GENERATE, MODEL_TASKS
from airflow_provider_raybatch.contract.arguments.vllm_names import ENGINE_ARGS, SAMPLING, VERSIONS
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.location import DESTINATION_SCHEMES, SOURCE_SCHEMES, check_location
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import nearest
from airflow_provider_raybatch.contract.together import RULES
from airflow_provider_raybatch.operators.arguments import spec_of_fields

_STAND_INS = {
    "source": "s3://unknown-source",
    "destination": "s3://unknown-destination",
    "reuse": "s3://unknown-reuse",
    "model": "unknown/model",
}
"""Values for unknown arguments with which no check of the known ones fails."""
_COLUMN = "not_known_while_parsing"
"""A column that no source has."""
_OF_ROWS = ("system_prompt", "images", "sampling_column", "adapter_column", *PROMPTS)
"""Arguments by which a request may depend on its row."""
_NOT_WITH_TOOLS = ("model_task", "response_format", "sampling", *PROMPTS)
_ALSO = {
    "on_overlong": ("model_task",),  # lines of text to embed have it
    "model": ("processor",),
    "sampling": ("engine", "processor"),
    "tools": ("engine", "engine_args", "tool_choice", "tool_call_parser", *_NOT_WITH_TOOLS),
    "tool_choice": ("tools", "engine", "engine_args", "tool_call_parser", *_NOT_WITH_TOOLS),
    "tool_call_parser": ("tools", "steps", "engine", "engine_args", "tool_choice", *_NOT_WITH_TOOLS),
    "top_n": PAIRS,
    "keep_images": ("images", "steps"),
    "adapter_column": ("adapter",),
}
_UNDECIDED = [rule for rule in RULES if rule.needs or rule.other.field == "model_task"]
_TOGETHER = {
    name: {*_ALSO.get(name, ()), *(rule.other.field for rule in _UNDECIDED if rule.argument == name)}
    for name in {*_ALSO, *(rule.argument for rule in _UNDECIDED)}
}
"""Arguments that can't be judged while one of the others is unknown."""
_BY_ITEM = ("sampling", "engine_args", "pooling")
"""Dictionaries whose known items are judged without the others."""
_LOCATIONS = {"source": SOURCE_SCHEMES, "destination": DESTINATION_SCHEMES, "reuse": DESTINATION_SCHEMES}
_EXPRESSION = re.compile(r"\{[{%#]")
_POLLS_A_LEASE = 3


def known_fields(
    arguments: Mapping[str, Any], unknown: Collection[str], changes: Callable[[Any], bool]
) -> tuple[dict[str, Any], set[str]]:
    """Fields of the spec that are given, and the names of all that a template or an XCom decides.

    :param arguments: of the operator.
    :param unknown: names of those that one decides, at least in part.
    :param changes: whether one decides a value.
    :raises SpecError: an object has a name that it does not take.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    whole = {name for name in unknown if not (name in GROUPS and isinstance(given.get(name), Mapping))}
    later = {field for name in whole for field in (name, *FIELDS_OF.get(name, ()))}
    later |= {"messages_column"} & {f"{name}_column" for name in whole}
    for name in {*unknown} - whole:
        later |= {field for field, value in given[name].items() if changes(value)}
        if isinstance(given[name].get("chat_template"), str):
            later.discard("chat_template")  # the model's Jinja
    known = {
        name: value
        for name, value in given.items()
        if not (name in whole and name in GROUPS) or (isinstance(value, str) and name in FIELDS_OF[name])
    }
    return fields_of(known), later


def spec_of_known(
    arguments: Mapping[str, Any], unknown: Collection[str], changes: Callable[[Any], bool]
) -> BatchInferenceSpec:
    """A spec with stand-ins for unknown arguments.

    :param arguments: fields of the spec that are given.
    :param unknown: names of those that a template, an XCom or a decorated function decides, at least in part.
    :param changes: whether a template or an XCom decides a value.
    :raises SpecError: the first mistake that the unknown arguments can't undo.
    """
    if not changes("/"):  # else the DAG has delimiters of its own
        for name in _LOCATIONS:
            _check_starts(name, arguments.get(name))
    steps = arguments.get("steps")
    if "sampling" in unknown and _has(steps, "each") and changes(_n_of(arguments["sampling"])):
        unknown = {*unknown, "steps"}  # whether a step gives several completions
    for name in _BY_ITEM:
        if name in unknown and isinstance(values := arguments.get(name), Mapping):
            items = {key: value for key, value in values.items() if not changes(value)}
            arguments, unknown = {**arguments, name: items}, set(unknown) - {name}
    of_calls = {"tool_call_parser", *_TOGETHER["tool_call_parser"]}
    if not of_calls.isdisjoint(unknown) and _has(steps, "tools"):
        unknown = {*unknown, "steps"}  # whether calls can be read
    known = {
        name: value
        for name, value in arguments.items()
        if name not in unknown and not any(other in unknown for other in _TOGETHER.get(name, ()))
    }
    left_out = {*unknown, *arguments} - known.keys()
    known |= {name: value for name, value in _STAND_INS.items() if name in left_out}
    return spec_of_fields(_with_stand_ins(known, left_out))


def _with_stand_ins(known: dict[str, Any], left_out: set[str]) -> dict[str, Any]:
    """Known arguments with stand-ins for what rows are asked by, where an unknown one may give it."""
    by_lines = known.get("format") == OPENAI_BATCH
    task = MODEL_TASKS.get(str(known.get("model_task", GENERATE)))
    in_steps = bool(known.get("steps"))
    prompts = {"prompt": (*PROMPTS, "steps")}
    asked = {"document": PAIRS, "query": ("query",)} if task and task.compares else prompts
    for name, ways in asked.items():
        if by_lines or any(known.get(way) is not None for way in ways):
            continue
        if left_out.intersection((*ways, "format", "model_task")):
            known[name] = f"{{row.{_COLUMN}}}"
    generates = known.get("model_task", GENERATE) == GENERATE and not by_lines and not in_steps
    if generates and left_out.intersection(_OF_ROWS):
        known["sampling_column"] = known.get("sampling_column") or _COLUMN
    if "engine" in left_out:
        known["model"] = known.get("model") or _STAND_INS["model"]
    return known


def _has(steps: Any, name: str) -> bool:
    """Whether one of the steps has an argument."""
    known = steps if isinstance(steps, (list, tuple)) else ()
    return any(isinstance(step, Mapping) and step.get(name) for step in known)


def _n_of(sampling: Any) -> Any:
    """The number of completions, or what decides it."""
    return sampling.get("n") if isinstance(sampling, Mapping) else sampling


def _check_starts(name: str, value: Any) -> None:
    """Refuse a template whose text before the first expression can't begin a location."""
    for text in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(text, str) and (expression := _EXPRESSION.search(text)):
            start = text[: text.rfind("/", 0, expression.start()) + 1]
            if start.rstrip("/") and not start.rstrip("/").endswith(":"):
                try:
                    check_location(start, _LOCATIONS[name])
                except ValueError as error:
                    raise SpecError(f"{name}: {error}.") from None


def unknown_names(spec: BatchInferenceSpec) -> list[str]:
    """A sentence for each name of a sampling parameter or engine argument that only the cluster can judge."""
    if not spec.has_vllm_sampling:
        return []
    given = {"sampling": ({name for one in spec.questions() for name in one.sampling}, SAMPLING)}
    if spec.engine != "echo":
        given["engine_args"] = (set(spec.engine_args), ENGINE_ARGS)
    sentences = []
    for argument, (names, known) in given.items():
        for name in sorted(names - known):
            close = nearest(name, known)
            hint = f" (did you mean {close!r}?)" if close else ""
            sentences.append(
                f"{argument}: vLLM {VERSIONS} has no {name!r}{hint}; the cluster's version decides."
            )
    return sentences


def warn_of_dag(text: str) -> None:
    """Warn with the line of the DAG file, below the frames of Airflow and of this package."""
    frame = sys._getframe()
    while frame.f_back is not None and _not_of_user(frame):
        frame = frame.f_back
    place, names = frame.f_code.co_filename, frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, UserWarning, place, frame.f_lineno, names.get("__name__"), registry)


def _not_of_user(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(("airflow.", "airflow_provider_raybatch."))


def check_lease(orphan_timeout: float, poll_interval: float) -> None:
    """Refuse a job that would end itself while it is followed.

    :raises SpecError: `orphan_timeout` is less than three times `poll_interval`.
    """
    if 0 < orphan_timeout < _POLLS_A_LEASE * poll_interval:
        raise SpecError(
            f"orphan_timeout: {orphan_timeout:g} s is less than {_POLLS_A_LEASE} times the poll_interval of "
            f"{poll_interval:g} s, so a followed job could end itself; raise it or lower poll_interval."
        )
