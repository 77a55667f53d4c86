# SPDX-License-Identifier: Apache-2.0
"""Whole jobs over rows with images: each image is asked about once, and a bad one fails its row alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.job.phases.driver import run
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.folder import folder as folder_at
from tests.support.engine_log import engines
from tests.support.numbered_pictures import Picture, source_of
from tests.support.reading import as_jsonl
from tests.support.refusing_s3 import answering
from tests.support.repeated_task import RepeatedTask, answers, letters_of, rows_of
from tests.support.s3_server import S3Server
from tests.support.specs import submitted
from tests.support.whole_job import ended_while_writing, without_cluster

pytest.importorskip("PIL")

ROWS = 12
PICTURES = [Picture(number) for number in range(ROWS)]
CONTENTS = [one.content() for one in PICTURES]
STEPS: list[dict[str, Any]] = [
    {"name": "read", "prompt": "read {row.id}", "images": "scan"},
    {"name": "check", "prompt": "check {row.read_response}"},
    {
        "name": "again",
        "prompt": "again {row.read_response}",
        "images": ["scan", "other"],
        "when": ["read_output_tokens", ">", 0],
    },
]


@pytest.fixture
def lake(tmp_path: Path) -> Folder:
    return folder_at(str(tmp_path / "lake"))


def keep(folder: Folder, names: Sequence[str], contents: Sequence[bytes]) -> list[str]:
    """Keep files in a folder; returns references to them."""
    for name, content in zip(names, contents, strict=True):
        folder.write(name, content)
    return [f"{folder.uri}/{name}" for name in names]


def test_an_image_is_known_by_its_content(task: RepeatedTask, lake: Folder) -> None:
    contents = [*CONTENTS, *CONTENTS]
    asked: dict[str, Any] = {"reuse": str(task.folder / "responses"), "prompt": "What is that?"}
    asked |= {"images": "image", "image_roots": [lake.uri]}
    first = keep(lake, [f"{number}.png" for number in range(2 * ROWS)], contents)
    others = keep(lake, [f"other {number}.png" for number in range(2 * ROWS)], contents[::-1])
    new = keep(lake, ["new.png"], [Picture(99).content()])

    assert task.asked(task.run(**source_of(task.folder, image=first), **asked)) == ROWS
    again = [{"path": place} for place in [*others, *new]] + [{"bytes": content} for content in contents]
    assert task.asked(task.run(run_id="r2", **source_of(task.folder, image=again), **asked)) == 1


def test_a_bad_image_fails_alone(task: RepeatedTask, lake: Folder) -> None:
    secret = folder_at(f"{lake.uri}-secret")
    good = CONTENTS[1]
    names = ["good.png", "text.png", "cut.png", "large.bmp"]
    found = keep(lake, names, [good, b"no picture", good[:-30], PICTURES[2].content("BMP") + bytes(9000)])
    outside = keep(secret, ["key.png"], [good])[0]
    (task.folder / "lake/link.png").symlink_to(task.folder / "lake-secret/key.png")
    bad = {
        found[1]: "a format that is not read",
        found[2]: "cut off",
        found[3]: "max_image_bytes",
        outside: "image_roots",
        f"{lake.uri}/link.png": "image_roots",
        f"{lake.uri}/../lake-secret/key.png": "the name '..'",
        f"{lake.uri}/missing.png": "missing.png",
        "https://images.example.com/1.png": "image_hosts",
        "http://169.254.169.254/latest": "a URI of s3://",
    }
    limits: dict[str, Any] = {
        "image_roots": [lake.uri],
        "id_column": "id",
        "max_image_bytes": 9000,
        "max_errors": 20,
    }

    manifest = task.run(
        **source_of(task.folder, image=[found[0], *bad]), images="image", prompt="on {row.id}", **limits
    )

    assert answers(manifest) == {"r0": f"{PICTURES[1].said} on r0"}
    assert manifest.counts.errors_by_step == {"media": len(bad)}
    letters = {letter["id"]: letter["reason"] for letter in letters_of(manifest)}
    for number, words in enumerate(bad.values(), 1):
        assert words in letters[f"r{number}"]
    assert task.asked(manifest) == 1


def assert_read(rows: list[dict[str, Any]], numbers: list[int]) -> None:
    """Each step has seen the images that it names, and no others."""
    assert [row["id"] for row in rows] == [f"r{number}" for number in numbers]
    for number, row in zip(numbers, rows, strict=True):
        scan, other = PICTURES[number], PICTURES[-1 - number]
        read = f"{scan.said} read r{number}"
        assert row["read_response"] == read
        assert row["check_response"] == f"check {read}"
        assert row["again_response"] == f"{scan.said} {other.said} again {read}"


def test_answers_of_a_job_that_ended_midway_are_found(task: RepeatedTask, lake: Folder) -> None:
    scans = keep(lake, [f"{number}.png" for number in range(ROWS)], CONTENTS)
    others = keep(lake, [f"other-{number}.png" for number in range(ROWS)], CONTENTS[::-1])
    asked: dict[str, Any] = {
        "steps": STEPS,
        "image_roots": [lake.uri],
        "reuse": str(task.folder / "responses"),
    }
    asked["preserve_order"] = True
    source = source_of(task.folder, scan=scans, other=others)
    slow: dict[str, Any] = {
        "engine_args": {"seconds_per_token": 0.005, "max_num_seqs": 4},
        "rows_in_flight": 4,
    }

    with ended_while_writing(2, RaybatchError("the disk is away.", FailureClass.CANCELLED)):
        task.refused(FailureClass.CANCELLED, **source, **asked, **slow, flush_interval=0.01)
    first = task.asked_in_all()
    manifest = task.run(**source, **asked)
    assert_read(rows_of(manifest), list(range(ROWS)))
    assert 0 < task.asked(manifest) < 3 * ROWS
    assert first + task.asked(manifest) <= 3 * ROWS + 3 * 4  # what was not written is asked again

    copies = keep(lake, [f"copy-{number}.png" for number in range(ROWS)], CONTENTS)
    again = task.run(run_id="r2", **source_of(task.folder, scan=copies, other=others), **asked)
    assert task.asked(again) == 0
    assert [step.reused for step in again.steps or ()] == [ROWS, ROWS, ROWS]


def test_a_bad_image_fails_in_the_step_that_shows_it(task: RepeatedTask) -> None:
    scans, others = CONTENTS[:6], CONTENTS[::-1][:6]
    scans[1], others[4] = b"no picture", others[4][:-30]
    other = [{"bytes": one, "path": "scan.png"} for one in others]
    asked: dict[str, Any] = {"steps": STEPS, "id_column": "id", "max_errors": 2, "preserve_order": True}
    asked |= source_of(task.folder, scan=scans, other=other)
    manifest = task.run(**asked)
    letters = {letter["id"]: letter for letter in letters_of(manifest)}
    assert {name: letter["step"] for name, letter in letters.items()} == {
        "r1": "read.media",
        "r4": "again.media",
    }
    assert letters["r4"]["row"]["check_response"] == f"check {PICTURES[4].said} read r4"
    rows = rows_of(manifest)
    assert_read(rows, [0, 2, 3, 5])
    assert {"scan", "other"}.isdisjoint(rows[0])  # they hold bytes
    assert [(step.asked, step.errors) for step in manifest.steps or ()] == [(6, 1), (5, 0), (5, 1)]
    kept = rows_of(task.run(token="kept", **asked, keep_images=True))
    assert {row["id"]: row["scan"] for row in kept} == {
        f"r{number}": scans[number] for number in (0, 2, 3, 5)
    }


@pytest.mark.parametrize("deduplicate", [True, False])
def test_wrong_keys_fail_the_job_and_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deduplicate: bool
) -> None:
    """Those of the source are its own; here it lies on a disk."""
    pytest.importorskip("obstore")
    without_cluster(monkeypatch)
    (tmp_path / "in.jsonl").write_bytes(as_jsonl([{"image": "s3://lake/img/1.png"}]))
    spec = submitted(
        source=[str(tmp_path / "in.jsonl")],
        destination=f"{tmp_path}/out",
        prompt="What is that?",
        images="image",
        image_roots=["s3://lake/img"],
        engine_args={"request_log": str(tmp_path / "log")},
        deduplicate=deduplicate,
        max_errors=9,
    )
    answer = "<Error><Code>InvalidAccessKeyId</Code></Error>"
    with answering(403, answer) as url, pytest.raises(RaybatchError) as caught:
        run(spec, spec.submission, lambda event: None, Secrets(aws=S3Server(url).credentials))
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert str(caught.value).startswith("images: s3://lake/img")
    assert "the credentials are refused (InvalidAccessKeyId); check aws_conn_id" in str(caught.value)
    assert not any(engine.asked for engine in engines(tmp_path / "log"))
