# SPDX-License-Identifier: Apache-2.0
"""What a preview shows of requests and of an engine's answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.preview import (
    MOST_CHARACTERS,
    MOST_OF_STEP,
    RowAnswer,
    ShownCompletion,
    ShownMessage,
)
from airflow_provider_raybatch.contract.text import clean, cut_to, without_queries
from airflow_provider_raybatch.job.engine.base import Engine, EngineDeadError
from airflow_provider_raybatch.job.request.messages import text_of
from airflow_provider_raybatch.job.row import RenderError, Request, Response, RowFailure
from airflow_provider_raybatch.job.tasks.base import Task

_MOST_COMPLETIONS = 16
_LONGEST_COLUMNS = 4_000
_NUMBERS = 4
_SHOWN = frozenset({
    "response",
    "finish_reason",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "truncated_prompt_tokens",
    "completions",
})
"""Columns that a preview shows in its own way."""


def decoded(engine: Engine, made: Sequence[Any]) -> list[Response | RowFailure]:
    """The responses that an engine gave to requests, or why it gave none.

    :param made: of each request, what `generate` returned, or the failure before.
    """
    raw = [one for one in made if not isinstance(one, RowFailure)]
    try:
        responses = iter(engine.decode(raw))
    except EngineDeadError as error:
        return [one if isinstance(one, RowFailure) else died(error) for one in made]
    return [one if isinstance(one, RowFailure) else next(responses) for one in made]


def died(error: EngineDeadError) -> RowFailure:
    """Of a row that the engine had when it died."""
    return RowFailure("engine", f"the engine died while it had this row, perhaps of another one: {error}")


def row_answer(
    task: Task, ordinal: int, made: Response | RowFailure, checked: Response | RowFailure, step: str = ""
) -> RowAnswer:
    """What a preview shows of an answer.

    :param made: as it came.
    :param checked: as a job would check it.
    :param step: its name, of several.
    """
    failure, room = None, MOST_OF_STEP if step else MOST_CHARACTERS
    if isinstance(checked, RowFailure):
        failure = f"{step}{'.' if step else ''}{checked.step}: {without_queries(checked.reason)}"
    return RowAnswer(
        ordinal=ordinal,
        step=step,
        completions=() if isinstance(made, RowFailure) else _completions(made, room),
        input_tokens=made.input_tokens,
        columns="" if isinstance(checked, RowFailure) else _columns(task, checked),
        failure=failure,
    )


def _completions(response: Response, room: int) -> tuple[ShownCompletion, ...]:
    """The first ones, until `room` characters are used up."""
    shown = []
    for one in response.completions[:_MOST_COMPLETIONS]:
        text = cut_to(clean(one.text), max(100, room))
        room -= len(text)
        shown.append(
            ShownCompletion(text=text, finish_reason=one.finish_reason, output_tokens=one.output_tokens)
        )
    return tuple(shown)


def _columns(task: Task, response: Response) -> str:
    """What else the dataset would have of a response, by its columns, as JSON."""
    outputs = task.outputs([response])
    known = task.measured([pa.chunked_array([outputs])])
    outputs, _ = known.split(outputs)  # of several rows the first is shown
    columns = known.published(pa.chunked_array([outputs]))
    found = {
        task.names[field.name]: column[0].as_py()
        for field, column in zip(known.published_type, columns, strict=True)
        if field.name not in _SHOWN
    }
    if task.derived:
        table = task.with_derived(pa.table({"ok": [True], "output": outputs}))
        found |= dict(zip(task.derived, table["derived"][0].as_py().values(), strict=True))
    short = {name: _short(one) for name, one in found.items()}
    made = json.dumps(short, ensure_ascii=False, default=str) if short else ""
    return cut_to(clean(made), _LONGEST_COLUMNS)


def _short(value: Any) -> Any:
    """`value`; of a vector its first numbers, and how many there are."""
    if isinstance(value, list) and len(value) > 2 * _NUMBERS and isinstance(value[0], Real):
        return [*(round(float(one), 4) for one in value[:_NUMBERS]), f"{len(value):,} numbers in all"]
    return value


def shown_messages(request: Request, room: int = MOST_CHARACTERS, most: int = 64) -> tuple[ShownMessage, ...]:
    """Its texts, the earlier ones first, until the room for them is used up.

    :param room: characters of all of them.
    :param most: how many are shown.
    """
    texts = _texts(request)
    shown = []
    for role, text in texts[:most]:
        text = cut_to(clean(text), max(100, room))
        room -= len(text)
        shown.append(ShownMessage(role=cut_to(clean(role), 100), text=text))
    left = len(texts) - len(shown)
    return (*shown, ShownMessage(role="", text=f"[{left:,} more messages]")) if left else tuple(shown)


def _texts(request: Request) -> list[tuple[str, str]]:
    """Role and text of each message; the role of a raw prompt is empty."""
    if request.each:
        return [text for one in request.each for text in _texts(one)]
    if request.messages is None:
        return [("", request.prompt or "")]
    return [(str(message.get("role", "")), _text(message)) for message in request.messages]


def _text(message: Mapping[str, Any]) -> str:
    try:
        text = text_of(message.get("content"))
    except RenderError:  # it is for another server
        text = json.dumps(message.get("content"), ensure_ascii=False, default=str)
    calls: Sequence[Any] = message.get("tool_calls") or ()
    return f"{text}{json.dumps(calls, ensure_ascii=False, default=str)}" if calls else text
