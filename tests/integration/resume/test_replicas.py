# SPDX-License-Identifier: Apache-2.0
"""Replicas as actors of a Ray: two share the rows, and others go on where one is killed."""

from __future__ import annotations

import io
import math
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.run import supervision
from airflow_provider_raybatch.job.run.pipeline import Pipeline
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.engine_log import killing_one
from tests.support.repeated_task import RepeatedTask, answers, assert_whole, letters_of, rows_of
from tests.support.s3_server import S3Server

SHARED: dict[str, Any] = {"replicas": 2, "batch_size": 16, "preserve_order": True}


@pytest.mark.thorough("documents of two replicas beside a kill; a simulation, and another kill always")
def test_rows_of_a_document_go_to_one_of_two_replicas(task: RepeatedTask) -> None:
    """Four questions on each of 120 documents, in random order; all take one engine 11 s.

    One replica is killed, and a third one goes on.
    """
    documents, slots = 120, 16
    texts = [
        f"{document:08d}{'x' * 3000} question {number}"
        for document in range(documents)
        for number in range(4)
    ]
    random.Random(7).shuffle(texts)
    task.input(texts)
    pace = {"seconds_per_token": 0.125, "startup_seconds": 3.0}
    with killing_one(task.folder / "requests", answered=len(texts) // 6):
        manifest = task.run(**SHARED, rows_in_flight=slots, engine_args=pace, flush_interval=0.2)
    assert_whole(manifest, texts)
    assert "many prompts begin alike; their rows are brought together first" in task.notices()
    assert len(manifest.replicas) == 3
    # Only what was in the engine or not yet written is asked again.
    assert len(texts) < task.asked(manifest) <= len(texts) + 4 * slots
    asked = sorted((at, text, one.pid) for one in task.engines_of(manifest) for text, at in one.asked)
    answered_by = {text: pid for _, text, pid in asked}
    readings = {(text[:8], pid) for text, pid in answered_by.items()}
    # In the order of the input, both would have most documents. At the borders of assignments, for the
    # last rows, which are spread, and for those that were lost, a document may come to two.
    assert documents <= len(readings) <= 1.4 * documents


@pytest.mark.thorough("rows dealt out on a Ray; unit/job/row_order does it without one")
def test_two_replicas_get_as_many_long_rows(task: RepeatedTask) -> None:
    """The last quarter of the rows is long. An engine has half of it for 6 s, in which a second one comes."""
    rows, slots, words = 480, 60, {"short": 4, "long": 32}
    kinds = ["long" if number >= rows * 3 // 4 else "short" for number in range(rows)]
    texts = [f"{kind} {number} " + "word " * (words[kind] - 2) for number, kind in enumerate(kinds)]
    task.input([text + "more" for text in texts], [words[kind] for kind in kinds])
    pace = {"seconds_per_token": 0.2, "startup_seconds": 3.0}
    manifest = task.run(**SHARED, sampling_column="sampling", rows_in_flight=slots, engine_args=pace)
    assert_whole(manifest, [text.strip() for text in texts])
    both = task.engines_of(manifest)
    assert len(both) == 2
    assert min(sum(text.startswith("long") for text, _ in one.asked[:slots]) for one in both) >= 50
    began, ended = zip(*((one.began_seconds, one.ended_seconds) for one in manifest.replicas), strict=True)
    assert min(began) == 0.0
    assert max(began) < min(ended)
    assert max(ended) <= manifest.timing.generation_seconds + 0.1


def test_a_late_replica_gets_what_has_not_begun(task: RepeatedTask) -> None:
    """Also where the first one had taken all rows. Few in the middle of the input are long."""
    rows, short, long = 1200, 4, 40
    at_once = 256  # lets no row end after the longest, whichever part a replica has
    middle = range(rows // 2, rows // 2 + 20)
    limits = [long if number in middle else short + number % 4 for number in range(rows)]
    texts = [f"{number} " + "word " * (most - 1) for number, most in enumerate(limits)]
    task.input([text + "more" for text in texts], limits)
    manifest = task.run(
        replicas=2,
        preserve_order=True,
        sampling_column="sampling",
        deduplicate=False,
        flush_interval=0.5,
        engine_args={"seconds_per_token": 0.3, "startup_seconds": 1.0, "startup_spread": 3.0},
    )
    assert_whole(manifest, [text.strip() for text in texts])
    assert task.asked(manifest) == rows
    both = task.engines_of(manifest)
    assert len(both) == 2
    most = [engine.most_beside(lambda text: text.count("word") >= long - 1) for engine in both]
    assert 0 < max(most) <= at_once
    assert min(len(engine.asked) for engine in both) >= rows // 6


def test_another_replica_goes_on_between_steps(tmp_path: Path, ray_here: Any, s3: S3Server) -> None:
    """Each text is that of two rows, far from each other: both replicas have rows that ask the same."""
    rows, distinct, slots = 192, 96, 8
    texts = [f"text {number % distinct}" for number in range(rows)]
    drafts = [f"draft {text}" for text in texts]
    judged = [f"judge {draft}" for draft in drafts]
    task = RepeatedTask(tmp_path, s3)
    task.input(texts)

    with killing_one(task.folder / "requests", answered=3 * slots) as pids:
        manifest = task.run(
            steps=[
                {"name": "draft", "prompt": "draft {row.text}"},
                {"name": "judge", "prompt": "judge {row.draft_response}"},
            ],
            replicas=2,
            rows_in_flight=slots,
            flush_interval=0.3,
            engine_args={"seconds_per_token": 0.12, "max_num_seqs": slots},
        )

    made = rows_of(manifest, task.out)
    assert [row["draft_response"] for row in made] == drafts
    assert [row["judge_response"] for row in made] == judged
    assert len(manifest.replicas) == 3
    engines = task.engines_of(manifest)
    (killed,) = (engine for engine in engines if engine.pid in pids)
    assert sorted(responses_in_parts(task.out, drafts)) == sorted(drafts)  # each is in one part
    asked = Counter(prompt for engine in engines for prompt, _ in engine.asked)
    again = {prompt for prompt, times in asked.items() if times > 1}
    assert all(times <= 2 for times in asked.values())
    assert again <= {prompt for prompt, _ in killed.asked}
    assert sum(asked.values()) == 2 * distinct + len(again)
    # What the killed one had in its engine, and what was answered since its last part.
    assert 0 < len(again) <= 4 * slots
    drafted = {prompt for prompt, _ in killed.generated if prompt in drafts} - again
    after = {prompt for prompt, _ in killed.generated if prompt in judged} - again
    assert len(drafted) > len(after)  # rows stood between two steps
    assert [(one.asked, one.ok, one.duplicates) for one in manifest.steps or ()] == [
        (rows, rows, rows - distinct)
    ] * 2


def responses_in_parts(folder: Folder, responses: list[str]) -> list[str]:
    """Return those of these responses that are in any part."""
    files = [entry.path for entry in folder.list("_raybatch/parts") if entry.path.endswith(".parquet")]
    tables = [pq.read_table(io.BytesIO(folder.read(path))) for path in files]
    outputs = (output for table in tables for output in table["output"].to_pylist())
    return [output["response"] for output in outputs if output["response"] in responses]


def test_a_poison_row_is_found_and_all_others_answered(task: RepeatedTask) -> None:
    texts = ["kill" if number == 11 else f"text {number}" for number in range(16)]
    task.input(texts)
    engine = {"engine_args": {"kill_pattern": "kill"}, "replicas": 1, "batch_size": 8}
    manifest = task.run(**engine, max_error_fraction=0.1)
    assert answers(manifest) == {f"r{number}": text for number, text in enumerate(texts) if text != "kill"}
    (letter,) = letters_of(manifest)
    assert letter["ordinal"] == 11
    assert "dies of this row" in letter["reason"]
    assert len(manifest.replicas) - 1 <= math.ceil(math.log2(16)) + 1


def test_a_poison_row_fails_a_job_that_allows_no_failure(
    task: RepeatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    consume = Pipeline.run

    def consume_and_note(pipeline: Pipeline) -> None:
        consume(pipeline)
        ended.set()

    monkeypatch.setattr(Pipeline, "run", consume_and_note)
    # The driver checks once, and again only after all work has ended.
    monkeypatch.setattr(supervision, "_check_moving", lambda *_: ended.wait(200))
    task.input(["a", "kill", "b"])
    engine = {"engine_args": {"kill_pattern": "kill"}, "replicas": 1}
    sentence = task.refused(FailureClass.POISON_ROW, **engine)
    assert sentence.startswith("max_error_fraction: 1 of 1 failed row killed the engine each time")
