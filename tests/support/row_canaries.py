# SPDX-License-Identifier: Apache-2.0
"""Rows with a canary in each of their fields, and all places where one must not be read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.failures.public_reasons import traceback_of
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.openai_lines import EMBEDDINGS, chat, completion, line

CANARY = "kanarie"
"""Begins each canary, so that one search finds them all, also where they are cut."""
_HOLD_ROWS = ("data/", "dead_letter/", "errors/", "_raybatch/sources/")
"""Folders of a destination that hold rows; so do parts, which are Parquet."""


def canary(name: str) -> str:
    return f"{CANARY}-{name}"


def canary_rows() -> list[Any]:
    """Return rows that are answered, and rows that fail in each step; texts are lines that are not rows.

    They want `sampling_column` ``sampling``, `id_column` ``id``, the response format JSON, and an echo with
    `max_model_len` 64 that fails requests with ``BREAK``.
    """
    asked = {"sampling": {}, "system": canary("system")}
    return [
        {"id": canary("good"), "text": json.dumps({canary("key"): canary("value")}), **asked, "system": ""},
        {"id": canary("no-json"), "text": canary("response"), **asked},
        {"id": canary("long"), "text": f"{canary('long-text')} " * 99, **asked},
        {"id": canary("broken"), "text": f"BREAK {canary('broken-text')}", **asked},
        {"id": canary("null"), "text": None, **asked},
        {"id": canary("name"), "text": "a", **asked, "sampling": {canary("parameter"): 1}},
        {"id": canary("wrong"), "text": "a", **asked, "sampling": {"temperature": canary("temperature")}},
        {"id": canary("type"), "text": "a", **asked, "sampling": canary("no-object")},
        f'{{"id": "{canary("torn")}", "text": "{canary("torn-text")}',
        f'{{"{canary("twice")}": 1, "{canary("twice")}": 2}}',
        json.dumps([canary("list")]),
        json.dumps({"id": canary("half"), "text": canary("half") + "\ud800"}),
    ]


def canary_lines() -> list[Any]:
    """Return lines of a batch file, with what clients get wrong; two are answered."""
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": canary("schema")}}}
    wrong: Mapping[str, Any] = {
        "temperature": canary("temperature"),
        "stop": [canary("stop"), ""],
        "response_format": {"type": canary("format")},
        "logit_bias": {canary("token"): 1},
        "stream": canary("stream"),
        "tools": [{"type": canary("tool")}],
        "tool_choice": canary("choice"),
        "top_logprobs": canary("logprobs"),
        canary("unknown"): 1,
        f"ValueError{CANARY}": 1,
    }
    return [
        line(canary("good"), chat(canary("prompt"), user=canary("user"), metadata={"a": canary("meta")})),
        line(canary("raw"), completion(canary("raw-prompt")), "/v1/completions"),
        *(line(canary(f"wrong-{n}"), chat(**{name: one})) for n, (name, one) in enumerate(wrong.items())),
        line(canary("schema"), chat(response_format=schema)),
        line(canary("model"), {**chat(), "model": canary("other-model")}),
        line(canary("url"), chat(), f"/v1/{canary('url')}"),
        line(canary("embed"), {"model": "echo", "input": canary("input")}, EMBEDDINGS),
        line(canary("method"), chat(), method=canary("verb")),
        line(canary("body"), canary("text-body")),
        line(canary("chat"), {"model": "echo", "messages": canary("messages")}),
        line(canary("role"), {"model": "echo", "messages": [{"role": canary("role"), "content": "a"}]}),
        line(canary("field"), {"model": "echo", "messages": [{"role": "user", canary("field"): "a"}]}),
        line(canary("part"), chat([{"type": canary("part")}])),
        line(canary("long"), chat(f"{canary('long-text')} " * 99)),
        line(canary("broken"), chat(f"BREAK {canary('broken-text')}")),
        f'{{"custom_id": "{canary("torn")}", "method": "{canary("torn-verb")}',
        f'{{"{canary("twice")}": 1, "{canary("twice")}": 2}}',
        json.dumps(canary("text-line")),
    ]


def written(rows: Iterable[Any]) -> bytes:
    """Return rows as JSON Lines; texts are lines already."""
    lines = (one if isinstance(one, str) else json.dumps(one) for one in rows)
    return "".join(f"{one}\n" for one in lines).encode()


def outside(place: Folder, events: Sequence[Any], error: RaybatchError | None) -> Iterator[tuple[str, str]]:
    """Yield what a job shows beside its dataset, dead letters and parts, and where.

    :param events: that the job has emitted.
    :param error: that it has ended with.
    """
    for event in events:
        yield f"event {event.event}", f"{event.text()} {event.model_dump_json()}"
    if error is not None:
        yield "error", f"{error} {traceback_of(error, shows_rows=False)}"
    for entry in place.list(""):
        if not entry.path.startswith(_HOLD_ROWS) and not entry.path.endswith(".parquet"):
            yield entry.path, f"{entry.path} {place.read(entry.path).decode(errors='replace')}"


def found_in(shown: Iterable[tuple[str, str]]) -> list[str]:
    """Return where a canary was read, with what is around it."""
    found = []
    for where, text in shown:
        if (at := text.casefold().find(CANARY)) >= 0:
            found.append(f"{where}: ...{text[max(0, at - 60) : at + 40]}")
    return found


def rows_of(place: Folder, folder: str) -> str:
    """Return the text of all files of a folder of the destination that hold rows as JSON."""
    return "".join(
        place.read(entry.path).decode(errors="replace")
        for entry in place.list(folder)
        if not entry.path.endswith(".parquet")
    )
