# SPDX-License-Identifier: Apache-2.0
"""Kinds of jobs with the requests that they need, and what each change adds to these on the next night."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from tests.support.repeated_task import RepeatedTask, rows_of
from tests.support.whole_job import ended_while_writing

Fields = dict[str, Any]
ROWS, TEXTS = 20, 5
GREEDY, SAMPLED = {"temperature": 0}, {"temperature": 1}
ADAPTER = {"adapter": "s3://models/acme"}


class Changed(NamedTuple):
    """Another night.

    :param asked: requests that the nights before did not make.
    """

    fields: Fields
    asked: int


class Shape(NamedTuple):
    """A job of rows that all differ, or of 20 rows with five texts.

    :param asked: its distinct requests.
    :param changes: by what is different on the next night.
    """

    fields: Fields
    asked: int
    changes: Mapping[str, Changed]


def step(name: str, prompt: str, **fields: Any) -> Fields:
    return {"name": name, "prompt": prompt, "sampling": GREEDY, **fields}


def shapes(texts: int) -> dict[str, Shape]:
    """Return all of them for rows with so many texts."""
    draft = step("draft", "draft {row.text}")
    judge = step("judge", "judge {row.draft_response}")
    end = step("end", "end {row.judge_response}")
    city = step("judge", "of {row.city}")
    longer, other = {"sampling": {**GREEDY, "max_tokens": 50}}, {"prompt": "again {row.draft_response}"}
    sampled, votes = draft | {"sampling": SAMPLED}, judge | {"sampling": SAMPLED}
    drafts = {**draft, "sampling": {**SAMPLED, "n": 2}}
    schema = {"response_format": "json_object", "on_rejected": "continue"}
    repair = step("repair", "repair {row.draft_rejected}", when=["draft_rejected", "is not null"])
    of_each = {**judge, "each": "draft"}
    few = {**judge, "when": ["text", "in", ["text 0", "text 1"]]}
    return {
        "one question": Shape({"prompt": "{row.text}"}, texts, {
            "prompt": Changed({"prompt": "again {row.text}"}, texts),
            "sampling": Changed({"prompt": "{row.text}", **longer}, texts),
            "model": Changed({"prompt": "{row.text}", "model": "echo-2"}, texts),
            "adapter": Changed({"prompt": "{row.text}", **ADAPTER}, texts),
        }),
        "one question, sampled": Shape({"prompt": "{row.text}", "sampling": SAMPLED}, ROWS, {
            "prompt": Changed({"prompt": "again {row.text}", "sampling": SAMPLED}, ROWS),
        }),
        "two steps": Shape({"steps": [draft, judge]}, 2 * texts, {
            "first step's sampling": Changed({"steps": [draft | longer, judge]}, texts),
            "last step's prompt": Changed({"steps": [draft, judge | other]}, texts),
            "last step's adapter": Changed({"steps": [draft, judge | ADAPTER]}, texts),
            "model": Changed({"steps": [draft, judge], "model": "echo-2"}, 2 * texts),
            "one more step": Changed({"steps": [draft, judge, end]}, texts),
        }),
        "two steps, the last about two values": Shape({"steps": [draft, city]}, texts + 2, {
            "first step's sampling": Changed({"steps": [draft | longer, city]}, texts),
        }),
        "two steps, the first sampled": Shape({"steps": [sampled, judge]}, ROWS + texts, {
            "last step's prompt": Changed({"steps": [sampled, judge | other]}, texts),
        }),
        "two steps, the last sampled": Shape({"steps": [draft, votes]}, 2 * texts, {
            "first step's sampling": Changed({"steps": [draft | longer, votes]}, 2 * texts),
        }),
        "two steps, both sampled": Shape(
            {"steps": [sampled, votes]}, 2 * ROWS, {}
        ),
        "three steps": Shape({"steps": [draft, judge, end]}, 3 * texts, {
            "the step between": Changed({"steps": [draft, judge | longer, end]}, texts),
        }),
        "drafts and a judge of each": Shape({"steps": [drafts, of_each]}, ROWS + 2 * texts, {
            "last step's prompt": Changed({"steps": [drafts, of_each | other]}, 2 * texts),
        }),
        "a repair of what is rejected": Shape({"steps": [draft | schema, repair]}, 2 * texts, {
            "last step's sampling": Changed({"steps": [draft | schema, repair | longer]}, texts),
        }),
        "a condition": Shape({"steps": [draft, few]}, texts + 2, {
            "no condition": Changed({"steps": [draft, judge]}, texts - 2),
        }),
    }  # fmt: skip


class Night(NamedTuple):
    """What a night asked beside what it needed."""

    what: str
    asked: int
    needed: int


def nights(task: RepeatedTask, shape: Shape, texts: int, kills: bool = True) -> Iterator[Night]:
    """Run a shape for the first time, unchanged, with each change, and with killed drivers.

    :param kills: only without a cluster.
    """
    rows = [
        {"id": f"r{number}", "text": f"text {number % texts}", "city": f"city C{number % 2}"}
        for number in range(ROWS)
    ]
    (task.folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = {"reuse": str(task.folder / "store")}

    def asked(night: str, fields: Fields) -> int:
        manifest = task.run(token=night, run_id=night.replace(" ", "-"), **fields, **store)
        _whole(manifest)
        return task.asked(manifest)

    yield Night("first", asked("first", shape.fields), shape.asked)
    yield Night("nothing changed", asked("same", shape.fields), 0)
    for what, change in shape.changes.items():
        yield Night(what, asked(what.replace("'", ""), change.fields), change.asked)
    if kills:
        yield _killed(task, shape)


def _killed(task: RepeatedTask, shape: Shape) -> Night:
    """A driver dies while parts are written, its successor at the commit: what no part has is asked again."""
    engine = {"seconds_per_token": 0.3 / shape.asked, "max_num_seqs": 2}
    slow = {"rows_in_flight": 2, "flush_interval": 0.01, "batch_size": 2, "engine_args": engine}
    death = RaybatchError("killed.", FailureClass.CANCELLED)
    with ended_while_writing(1 if shape.asked > TEXTS else 0, death), pytest.raises(RaybatchError):
        task.run(**shape.fields, **slow)
    kept, before = task.kept_requests(), len(task.all_asked())
    assert kept > 0 or shape.asked <= TEXTS
    with pytest.raises(SystemExit):
        task.run(**shape.fields, on_commit=_dies)
    _whole(task.run(**shape.fields))
    return Night("killed twice", len(task.all_asked()) - before, shape.asked - kept)


def _dies() -> None:
    raise SystemExit("killed when the manifest is there")


def _whole(manifest: BatchManifest) -> None:
    """Each row is there, with answers about its own text or city."""
    assert (manifest.counts.ok, manifest.counts.error) == (ROWS, 0), manifest.counts
    rows = rows_of(manifest)
    assert len({row["id"] for row in rows}) == ROWS
    for row in rows:
        answers = [row[name] for name in row if name.endswith("response") and name != "repair_response"]
        about = {row["text"].split()[1], row["city"].split()[1]}  # a sampled answer has its words shuffled
        assert all(one is None or not about.isdisjoint(one.split()) for one in answers), row
        assert any(answers), row
