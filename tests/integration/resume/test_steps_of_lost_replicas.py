# SPDX-License-Identifier: Apache-2.0
"""A replica is killed while its rows are between two steps: another goes on after what it has written."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.storage.folder import Folder
from tests.support.engine_log import killing_one
from tests.support.repeated_task import RepeatedTask, rows_of
from tests.support.s3_server import S3Server

ROWS, SLOTS = 96, 8
TEXTS = [f"text {number}" for number in range(ROWS)]
DRAFTS = [f"draft {text}" for text in TEXTS]
JUDGED = [f"judge {draft} of r{number}" for number, draft in enumerate(DRAFTS)]
FIELDS: dict[str, Any] = {
    "steps": [
        {"name": "draft", "prompt": "draft {row.text}"},
        {"name": "judge", "prompt": "judge {row.draft_response} of {row.id}"},
    ],
    "replicas": 2,
    "rows_in_flight": SLOTS,
    "flush_interval": 0.3,
    "engine_args": {"seconds_per_token": 0.12, "max_num_seqs": SLOTS},
}


@pytest.mark.parametrize(
    "place", [pytest.param("disk", marks=pytest.mark.turn(2)), pytest.param("s3", marks=pytest.mark.turn(0))]
)
def test_another_replica_goes_on_between_steps(
    place: str, tmp_path: Path, ray_here: Any, request: pytest.FixtureRequest
) -> None:
    server: S3Server | None = None if place == "disk" else request.getfixturevalue("s3")
    task = RepeatedTask(tmp_path, server)
    task.input(TEXTS)

    with killing_one(task.folder / "requests", answered=3 * SLOTS) as pids:
        manifest = task.run(**FIELDS)

    rows = rows_of(manifest, task.out)
    assert [row["draft_response"] for row in rows] == DRAFTS
    assert [row["judge_response"] for row in rows] == JUDGED
    assert len(manifest.replicas) == 3
    engines = task.engines_of(manifest)
    (killed,) = (engine for engine in engines if engine.pid in pids)
    written = drafts_in_parts(task.out)
    assert sorted(written) == sorted(DRAFTS)  # each is in one part
    asked = Counter(prompt for engine in engines for prompt, _ in engine.asked)
    again = {prompt for prompt, times in asked.items() if times > 1}
    assert all(times <= 2 for times in asked.values())
    assert again <= {prompt for prompt, _ in killed.asked}
    assert sum(asked.values()) == 2 * ROWS + len(again)
    # What the killed one had in its engine, and what was answered since its last part.
    assert 0 < len(again) <= 4 * SLOTS
    drafted = {prompt for prompt, _ in killed.generated if prompt in DRAFTS} - again
    judged = {prompt for prompt, _ in killed.generated if prompt in JUDGED} - again
    assert len(drafted) > len(judged)  # rows stood between two steps
    counts = manifest.steps or ()
    assert [(one.asked, one.ok) for one in counts] == [(ROWS, ROWS)] * 2


def drafts_in_parts(folder: Folder) -> list[str]:
    """Return the answers of the first step in all of its parts."""
    files = [entry.path for entry in folder.list("_raybatch/parts") if entry.path.endswith(".parquet")]
    tables = [pq.read_table(io.BytesIO(folder.read(path))) for path in files]
    outputs = (output for table in tables for output in table["output"].to_pylist())
    return [output["response"] for output in outputs if output["response"] in DRAFTS]
