# SPDX-License-Identifier: Apache-2.0
"""A further task is a class and an entry in the registry; the one here computes the length of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_provider_raybatch.contract.arguments.task import MODEL_TASKS, TaskRules
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.tasks.base import Task, Totals
from airflow_provider_raybatch.job.tasks.registry import TASKS
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.echo_place import EchoPlace


class Length(Task):
    """Counts the characters and words of a row's request; an empty request is a failure."""

    @property
    def output_type(self) -> pa.StructType:
        return pa.struct([("characters", pa.int32()), ("words", pa.int32())])

    def output(self, response: Response) -> dict[str, Any]:
        text = response.completions[0].text
        return {"characters": len(text), "words": len(text.split())}

    def check(self, response: Response, row_sampling: Mapping[str, Any]) -> Response | RowFailure:
        if response.completions[0].text:
            return response
        return RowFailure("length", "the row is empty", response.input_tokens, response.output_tokens)

    def totals(self, outputs: pa.StructArray | pa.ChunkedArray) -> Totals:
        return Totals(output_tokens=pc.sum(pc.struct_field(outputs, "words")).as_py() or 0)


TEXTS = ["one two", "three", "", "one two", "four five six"]


def job(place: EchoPlace, number: int, task: str) -> tuple[BatchManifest, list[dict[str, Any]]]:
    """Run a job over the texts into a destination of its own, with a response store of all jobs."""
    place.folder = LocalFolder(str(place.root / f"out-{number}"))
    fields = {"reuse": str(place.root / "store"), "sampling": {"temperature": 0}, "max_errors": 1}
    manifest = place.job(number, [{"text": text} for text in TEXTS], model_task=task, **fields)
    return manifest, place.rows(manifest)


@pytest.fixture(autouse=True)
def length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "length", Length)
    monkeypatch.setitem(MODEL_TASKS, "length", TaskRules("counts characters"))


def test_a_second_task_goes_all_the_way(place: EchoPlace) -> None:
    """Parts, duplicates, the response store, publishing and the manifest carry the unknown output."""
    manifest, rows = job(place, 0, "length")
    assert [(column.name, column.type) for column in manifest.columns] == [
        ("text", "string"),
        ("characters", "int32"),
        ("words", "int32"),
        ("reused_from", "string"),
    ]
    assert [(row["text"], row["characters"], row["words"]) for row in rows] == [
        ("one two", 7, 2),
        ("three", 5, 1),
        ("one two", 7, 2),
        ("four five six", 13, 3),
    ]
    assert (manifest.counts.errors_by_step, manifest.counts.duplicates) == ({"length": 1}, 1)
    assert (manifest.tokens.output, manifest.finish_reasons) == (8, {})
    assert place.generated() == 4
    again, reused = job(place, 1, "length")
    assert again.counts.reused == 4
    assert [row["characters"] for row in reused] == [7, 5, 7, 13]
    assert place.generated() == 5  # the empty row alone


def test_tasks_share_no_responses(place: EchoPlace) -> None:
    job(place, 0, "length")
    manifest, rows = job(place, 1, "generate")
    assert manifest.counts.reused == 0
    assert [row["response"] for row in rows] == TEXTS
