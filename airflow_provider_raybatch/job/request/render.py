# SPDX-License-Identifier: Apache-2.0
"""From a row to what is asked of the model."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from airflow_provider_raybatch.contract.arguments.openai_batch import LINE_COLUMNS
from airflow_provider_raybatch.contract.arguments.sampling import check_of_row
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.row_template import RowTemplate, column_text
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.request.messages import (
    image_placer,
    is_map,
    messages_of,
    pair_renderer,
    text_of,
)
from airflow_provider_raybatch.job.request.openai_batch.line import request_of
from airflow_provider_raybatch.job.request.row_text import is_blank, is_blank_row, not_blank
from airflow_provider_raybatch.job.row import (
    NOT_ASKED,
    BlankRowError,
    ImageError,
    RenderError,
    Request,
    RowFailure,
)

_OTHER_SERVERS = frozenset({"HttpRequestProcessorConfig", "ServeDeploymentProcessorConfig"})
"""Processors of Ray Data LLM that send chats unchanged to a server, which may take more."""
_LONGEST_NAME = 100
Render = Callable[[Mapping[str, Any]], Request]


def renderer(spec: BatchInferenceSpec, reads_images: bool = True) -> Render:
    """The function that turns a row into a request.

    :param reads_images: whether rows have the columns in `images`; see
        :func:`~airflow_provider_raybatch.job.request.messages.image_placer`.
    :raises PreflightError: a user's function can't be imported.
    """
    render, columns = _renderer(spec, reads_images), list(spec.column_arguments())
    if not spec.handles_blank or not reads_images:
        return render
    error: type[RenderError] = BlankRowError if spec.on_blank == "null" else RenderError
    is_chat = spec.messages_column is not None or not columns  # without columns, it is a function's

    def render_text(row: Mapping[str, Any]) -> Request:
        if not is_blank_row(row, columns):
            request = render(row)
            if not (is_chat and is_blank(request)):
                return request
        raise error("all that the prompt takes from the row is blank; set on_blank to 'null' to leave it out")

    return render_text


def _renderer(spec: BatchInferenceSpec, reads_images: bool) -> Render:
    if spec.asks_by_lines:
        adapter_of_job = next(iter(spec.adapter_locations), None)
        return lambda row: replace(request_of(row, spec), adapter=adapter_of_job)
    if spec.compares:
        return pair_renderer(spec)
    if spec.pools and spec.messages is None and spec.messages_column is None:
        return _text_renderer(spec)
    base, column, adapter = _prompt_renderer(spec), spec.sampling_column, _adapter_renderer(spec)
    place_images = image_placer(spec, reads_images)
    is_checked = spec.processor.get("config") not in _OTHER_SERVERS

    def render(row: Mapping[str, Any]) -> Request:
        request = base(row)
        if is_checked:
            if place_images is not None:
                request = place_images(request, row)
            for message in request.messages or ():
                text_of(message.get("content"))
        if column is not None:
            merged = {**request.sampling, **_sampling_of(row.get(column), column)}
            own = spec.sampling.get("n", 1)
            if spec.step_name and merged.get("n", own) != own:
                raise RenderError(
                    f"column {column!r} has n={merged['n']!r}, and all rows of a step have as many "
                    "completions; set n in the step's sampling"
                )
            request = replace(request, sampling=merged)
        if request.sampling:
            _check_logprobs(request.sampling, spec.sampling)
        return request if adapter is None else replace(request, adapter=adapter(row))

    return render


def needed_columns(spec: BatchInferenceSpec) -> list[str] | None:
    """Columns that a step's conditions and rendering read; ``None`` for all, as a user's function may."""
    if spec.asks_by_lines:
        return list(LINE_COLUMNS)
    if spec.prompt_function is not None:
        return None
    extra = filter(None, (spec.sampling_column, spec.adapter_column))
    return list(dict.fromkeys([*spec.column_arguments(), *extra, *spec.condition_columns]))


def render_all(render: Render, rows: Sequence[Any]) -> list[Request | RowFailure]:
    """Requests of rows; a row that fails gives its failure, and the others go on."""
    out: list[Request | RowFailure] = []
    for row in rows:
        if not isinstance(row, dict):
            out.append(RowFailure("read", row.reason))
            continue
        try:
            out.append(_checked(render(row)))
        except BlankRowError:
            out.append(NOT_ASKED)
        except ImageError as error:
            out.append(RowFailure.of("media", error))
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            out.append(RowFailure.of("template", error))
    return out


def _checked(request: Request) -> Request:
    """The request.

    :raises RenderError: it is not JSON, so it has no key.
    """
    for one in request.each:
        _checked(one)
    try:
        if not request.sampling and request.has_texts_alone:  # as most, and JSON takes several times as long
            for message in request.messages or ():
                message["content"].encode()
                message["role"].encode()
            return request
        content = [request.messages, request.prompt, dict(request.sampling)]
        json.dumps(content, ensure_ascii=False, sort_keys=True, default=str).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RenderError(f"the request is not JSON ({error})") from None
    return request


def _prompt_renderer(spec: BatchInferenceSpec) -> Render:
    system = _system(spec.system_prompt)
    if spec.prompt is not None:
        user = RowTemplate(spec.prompt)
        return lambda row: Request(messages=[*system(row), {"role": "user", "content": user.render(row)}])
    if spec.messages is not None:
        templates = [(message.role, RowTemplate(message.content)) for message in spec.messages]
        return lambda row: Request(
            messages=[{"role": role, "content": template.render(row)} for role, template in templates]
        )
    if (chat := spec.messages_column) is not None:
        return lambda row: Request(messages=[*system(row), *messages_of(row.get(chat), f"column {chat!r}")])
    if (raw := spec.prompt_column) is not None:
        return lambda row: Request(prompt=_not_empty(column_text(raw, row), raw))
    return _function_renderer(str(spec.prompt_function), system)


def _text_renderer(spec: BatchInferenceSpec) -> Render:
    """For a pooling model: the text alone, without a chat; blank text makes no request."""
    if (column := spec.prompt_column) is not None:
        return lambda row: Request(prompt=not_blank(column_text(column, row), f"column {column!r}"))
    if spec.prompt is not None:
        template = RowTemplate(spec.prompt)
        return lambda row: Request(prompt=not_blank(template.render(row), "the text of prompt"))
    path = str(spec.prompt_function)
    function = load_function(path)

    def render(row: Mapping[str, Any]) -> Request:
        made = _called(function, path, row)
        if not isinstance(made, str):
            raise RenderError(
                f"{path} returned {type(made).__name__}, and model_task {spec.model_task!r} needs a text"
            )
        if not spec.handles_blank:
            not_blank(made, f"the text that {path} returned")
        return Request(prompt=made)

    return render


def _called(function: Callable[..., Any], path: str, row: Mapping[str, Any]) -> Any:
    try:
        return function(copy.deepcopy(dict(row)))  # what it changes must not be published as the input
    except (Exception, SystemExit):
        raise
    except BaseException as error:  # it is the function's own, since no driver calls it
        raise RenderError(f"{path} raised {type(error).__name__}: {error}") from error


def _function_renderer(path: str, system: Callable[[Mapping[str, Any]], list[dict[str, Any]]]) -> Render:
    function = load_function(path)

    def render(row: Mapping[str, Any]) -> Request:
        made = _called(function, path, row)
        if isinstance(made, str):
            return Request(messages=[*system(row), {"role": "user", "content": made}])
        if isinstance(made, dict) and isinstance(made.get("prompt"), str):
            if not made["prompt"]:
                raise RenderError(f"what {path} returned is an empty prompt")
            return Request(prompt=made["prompt"], sampling=_sampling_of(made.get("sampling"), "sampling"))
        if isinstance(made, dict) and "messages" in made:
            messages = messages_of(made["messages"], f"{path} returned messages which")
            return Request([*system(row), *messages], None, _sampling_of(made.get("sampling"), "sampling"))
        return Request(messages=[*system(row), *messages_of(made, f"what {path} returned")])

    return render


def load_function(path: str, argument: str = "prompt_function", what: str = "function") -> Callable[..., Any]:
    """Import a user's function.

    :param argument: the operator's argument that names it.
    :param what: it should be.
    :raises PreflightError: the module can't be imported, or has no such function.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # whatever the user's module raises while it is imported
        raise PreflightError(
            f"{argument}: {path!r} can't be imported on the cluster ({type(error).__name__}: {error}); "
            "add what it needs to runtime_env, and keep it out of the DAG file."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise PreflightError(
            f"{argument}: module {module_name!r} has no {what} {name!r}; check the import path."
        )
    return function  # type: ignore[no-any-return]  # callable() narrows Any only to Any


def _system(text: str | None) -> Callable[[Mapping[str, Any]], list[dict[str, Any]]]:
    if not text:
        return lambda row: []
    template = RowTemplate(text)
    return lambda row: [{"role": "system", "content": template.render(row)}]


def _adapter_renderer(spec: BatchInferenceSpec) -> Callable[[Mapping[str, Any]], str | None] | None:
    """What gives the name of a row's adapter; ``None`` if the job has no adapters."""
    names, column = spec.adapter_locations, spec.adapter_column
    if column is None:
        own = next(iter(names), None)
        return None if own is None else lambda row: own

    def adapter(row: Mapping[str, Any]) -> str | None:
        value = row.get(column)
        if value is None or value == "":
            return None
        name = value if isinstance(value, str) else column_text(column, row)
        if name not in names:
            raise RenderError(
                f"column {column!r} names the adapter {name[:_LONGEST_NAME]!r}, which is not among adapters; "
                "add it there, or leave the value empty for the model alone"
            )
        return name

    return adapter


def _sampling_of(value: Any, what: str) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RenderError(f"{what} is a string, but no JSON object ({error})") from None
    if is_map(value):
        value = dict(value)
    if not isinstance(value, dict):
        raise RenderError(f"{what} is {type(value).__name__}, not an object of sampling parameters")
    if not all(isinstance(name, str) for name in value):
        raise RenderError(f"{what} has a key that is not the name of a sampling parameter")
    return {name: _number(inner) for name, inner in value.items() if inner is not None}


def _check_logprobs(sampling: Mapping[str, Any], of_job: Mapping[str, Any]) -> None:
    try:
        check_of_row(sampling, of_job)
    except ValueError as error:
        raise RenderError(f"sampling of the row: {error}") from None


def _number(value: Any) -> Any:
    """A number for a decimal, which JSON and vLLM don't know; any other value as it is."""
    if not isinstance(value, Decimal):
        return value
    return float(value) if value.as_tuple().exponent != 0 else int(value)


def _not_empty(text: str, column: str) -> str:
    if not text:
        raise RenderError(f"column {column!r} is empty")
    return text
