# SPDX-License-Identifier: Apache-2.0
"""Whole jobs whose rows are not asked in the order of their input, and are published in it."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from tests.support.repeated_task import RepeatedTask, assert_whole, rows_of
from tests.support.whole_job import ended_while_writing

SLOTS = 4
FIELDS: dict[str, Any] = {"rows_in_flight": SLOTS, "batch_size": 16, "preserve_order": True}
PREFIXES = "many prompts begin alike; their rows are brought together first"
LENGTHS = "rows have limits of their own; those with the longest answers come first"


def spread(asked: list[str]) -> int:
    """Rows between the first and the last one of a document, at most: the engine's cache must outlive them.

    Rows of two pulls may enter the engine in turn where the machine is busy.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for place, document in enumerate(asked):
        places[document].append(place)
    return max(found[-1] - found[0] for found in places.values())


def test_a_resume_brings_the_missing_rows_together(task: RepeatedTask) -> None:
    """Four questions on each of 60 documents, in random order."""
    texts = [f"{document:08d}{'x' * 3000} question {number}" for document in range(60) for number in range(4)]
    random.Random(7).shuffle(texts)
    task.input(texts)
    few = {"engine_args": {"seconds_per_token": 0.005}, "flush_interval": 0.01, "rows_per_part": 40}
    with ended_while_writing(2, RaybatchError("the disk is away.", FailureClass.CANCELLED)):
        task.refused(FailureClass.CANCELLED, **FIELDS, **few)
    kept = task.kept()
    assert 0 < kept < len(texts) // 2
    manifest = task.run(**FIELDS)
    assert_whole(manifest, texts)
    assert PREFIXES in task.notices()
    (engine,) = task.engines_of(manifest)
    asked = [prompt[:8] for prompt, _ in engine.asked]
    assert len(asked) == len(texts) - kept
    assert spread(asked) <= 32


def test_first_steps_of_rows_that_begin_alike_come_together(task: RepeatedTask) -> None:
    """Buckets have all columns, also those that later steps alone read."""
    rows = [
        {"text": f"{document:08d}{'x' * 3000} question {number}", "by": f"judge {number}"}
        for document in range(60)
        for number in range(4)
    ]
    random.Random(7).shuffle(rows)
    source = task.folder / "documents.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    steps = [
        {"name": "draft", "prompt": "{row.text}"},
        {"name": "judge", "prompt": "{row.by} of {row.draft_response}"},
    ]
    manifest = task.run(**FIELDS, source=[str(source)], steps=steps, sampling={"temperature": 0})
    assert PREFIXES in task.notices()
    assert [one["judge_response"] for one in rows_of(manifest)] == [
        f"{row['by']} of {row['text']}" for row in rows
    ]
    (engine,) = task.engines_of(manifest)
    drafts = [prompt[:8] for prompt, _ in engine.asked if not prompt.startswith("judge")]
    assert spread(drafts) <= 32


def test_long_rows_begin_first(task: RepeatedTask) -> None:
    """The last quarter of the rows is long."""
    rows, words = 160, {"short": 4, "long": 32}
    kinds = ["long" if number >= rows * 3 // 4 else "short" for number in range(rows)]
    texts = [f"{kind} {number} " + "word " * (words[kind] - 2) for number, kind in enumerate(kinds)]
    task.input([text + "more" for text in texts], [words[kind] for kind in kinds])
    manifest = task.run(**FIELDS, sampling_column="sampling")
    assert_whole(manifest, [text.strip() for text in texts])
    assert LENGTHS in task.notices()
    (engine,) = task.engines_of(manifest)
    begun = [prompt.split()[0] for prompt, _ in engine.asked]
    assert begun.count("long") == rows // 4
    assert "short" not in begun[: rows // 4 - 8 * SLOTS]
    assert "long" not in begun[rows // 2 :]
