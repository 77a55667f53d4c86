# SPDX-License-Identifier: Apache-2.0
"""Steps that show a row's images, beside others that read the answers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.storage.folder import folder as folder_at
from tests.integration.resume.test_images import dead_letters, keep, write
from tests.support.numbered_pictures import Picture
from tests.support.repeated_task import RepeatedTask, rows_of
from tests.support.s3_server import S3Server

ROWS = 24
PICTURES = [Picture(number) for number in range(ROWS)]
READ: dict[str, Any] = {"name": "read", "prompt": "read {row.id}", "images": "scan"}
CHECK: dict[str, Any] = {"name": "check", "prompt": "check {row.read_response}"}
AGAIN: dict[str, Any] = {
    "name": "again",
    "prompt": "again {row.read_response}",
    "images": ["scan", "other"],
    "when": ["read_output_tokens", ">", 0],
}
STEPS = [READ, CHECK, AGAIN]


def assert_read(rows: list[dict[str, Any]], numbers: list[int]) -> None:
    """Each step has seen the images that it names, and no others."""
    assert [row["id"] for row in rows] == [f"r{number}" for number in numbers]
    for number, row in zip(numbers, rows, strict=True):
        scan, other = PICTURES[number], PICTURES[-1 - number]
        read = f"{scan.said} read r{number}"
        assert row["read_response"] == read
        assert row["check_response"] == f"check {read}"
        assert row["again_response"] == f"{scan.said} {other.said} again {read}"


@pytest.mark.parametrize(
    "place", [pytest.param("disk", marks=pytest.mark.turn(2)), pytest.param("s3", marks=pytest.mark.turn(6))]
)
def test_a_stopped_job_goes_on_and_others_find_its_answers(
    place: str, tmp_path: Path, ray_here: Any, request: pytest.FixtureRequest
) -> None:
    server: S3Server | None = None if place == "disk" else request.getfixturevalue("s3")
    credentials = None if server is None else server.credentials
    task = RepeatedTask(tmp_path, server)
    lake = str(tmp_path) if server is None else f"s3://{server.new_bucket()}/lake"
    images, contents = folder_at(lake, credentials), [one.content() for one in PICTURES]
    scans = keep(images, [f"{number}.png" for number in range(ROWS)], contents)
    others = keep(images, [f"other-{number}.png" for number in range(ROWS)], contents[::-1])
    asked = {
        "steps": STEPS,
        "image_roots": [lake],
        "flush_interval": 0.2,
        "reuse": str(tmp_path / "responses"),
        "preserve_order": True,
    }
    source = write(task, scan=scans, other=others)
    slow = {"engine_args": {"seconds_per_token": 0.1, "max_num_seqs": 4}, "rows_in_flight": 4}

    task.stopped(f"again {PICTURES[5].said}", **source, **asked, **slow)
    first = task.asked_in_all()
    manifest = task.run(**source, **asked)
    assert_read(rows_of(manifest, task.out), list(range(ROWS)))
    assert 0 < task.asked(manifest) < 3 * ROWS
    assert first + task.asked(manifest) <= 3 * ROWS + 2 * 4  # what was in the engine is asked again

    names = [f"copy-{number}.png" for number in range(ROWS)]
    copies = write(task, scan=keep(images, names, contents), other=others)
    again = task.run(run_id="r2", **copies, **asked)
    assert task.asked(again) == 0
    assert [step.reused for step in again.steps or ()] == [ROWS, ROWS, ROWS]


@pytest.mark.turn(4)
def test_a_bad_image_fails_in_the_step_that_shows_it(task: RepeatedTask) -> None:
    scans, others = [one.content() for one in PICTURES[:6]], [one.content() for one in PICTURES[::-1][:6]]
    scans[1], others[4] = b"no picture", others[4][:-30]
    source = write(task, scan=scans, other=[{"bytes": one, "path": "scan.png"} for one in others])
    manifest = task.run(**source, steps=STEPS, id_column="id", max_errors=2, replicas=2)
    letters = dead_letters(manifest)
    assert {name: letter["step"] for name, letter in letters.items()} == {
        "r1": "read.media",
        "r4": "again.media",
    }
    assert letters["r4"]["row"]["check_response"] == f"check {PICTURES[4].said} read r4"
    rows = sorted(rows_of(manifest), key=lambda row: str(row["id"]))
    assert_read(rows, [0, 2, 3, 5])
    assert {"scan", "other"}.isdisjoint(rows[0])  # they hold bytes
    assert [(step.asked, step.errors) for step in manifest.steps or ()] == [(6, 1), (5, 0), (5, 1)]
    kept = rows_of(
        task.run(token="kept", **source, steps=STEPS, id_column="id", max_errors=2, keep_images=True)
    )
    assert {row["id"]: row["scan"] for row in kept} == {
        f"r{number}": scans[number] for number in (0, 2, 3, 5)
    }
