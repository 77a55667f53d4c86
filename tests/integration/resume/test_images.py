# SPDX-License-Identifier: Apache-2.0
"""Rows with images: each is asked with its own, once, and a bad one fails alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.folder import folder as folder_at
from tests.support.numbered_pictures import Picture
from tests.support.repeated_task import RepeatedTask, answers, rows_of
from tests.support.s3_server import S3Server

ROWS = 48
PROMPT = "What is on item {row.id}?"
REFERENCES = {"images": "image", "prompt": PROMPT}


def write(task: RepeatedTask, **columns: Sequence[Any]) -> dict[str, Any]:
    """Write rows with ids; returns the source as an argument."""
    rows = len(next(iter(columns.values())))
    path = task.folder / "in.parquet"
    table = pa.table({"id": [f"r{number}" for number in range(rows)], **columns})
    pq.write_table(table, path, row_group_size=20)
    return {"source": [str(path)]}


def said(number: int, *pictures: Picture) -> str:
    return " ".join([*(one.said for one in pictures), f"What is on item r{number}?"])


def keep(folder: Folder, names: Sequence[str], contents: Sequence[bytes]) -> list[str]:
    """Keep files in a folder; returns references to them."""
    for name, content in zip(names, contents, strict=True):
        folder.write(name, content)
    return [f"{folder.uri}/{name}" for name in names]


def dead_letters(manifest: BatchManifest) -> dict[str, dict[str, Any]]:
    (file,) = Path(manifest.dead_letter_uri or "").iterdir()
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    return {letter["id"]: letter for letter in letters}


def test_each_row_has_its_own_images(task: RepeatedTask) -> None:
    fronts = [Picture(number) for number in range(ROWS)]
    backs = [Picture(ROWS + number) if number % 3 else None for number in range(ROWS)]
    source = write(
        task,
        front=[{"bytes": one.content(), "path": f"{one.number}.png"} for one in fronts],
        back=[one and one.content("BMP") for one in backs],
    )
    asked = {**source, "images": ["front", "back"], "prompt": PROMPT}

    manifest = task.run(**asked, replicas=2)

    assert answers(manifest) == {
        f"r{number}": said(number, *filter(None, (fronts[number], backs[number]))) for number in range(ROWS)
    }
    assert {"front", "back"}.isdisjoint(rows_of(manifest)[0])  # they hold bytes
    assert manifest.stages.load_images > 0
    kept = rows_of(task.run(token="kept", **asked, keep_images=True))
    assert task.asked_in_all() == ROWS
    assert {row["id"]: row["front"]["bytes"] for row in kept} == {
        f"r{number}": fronts[number].content() for number in range(ROWS)
    }


@pytest.mark.parametrize(
    "place", [pytest.param("disk", marks=pytest.mark.turn(3)), pytest.param("s3", marks=pytest.mark.turn(7))]
)
def test_a_job_that_was_stopped_pays_for_the_rest(
    place: str, tmp_path: Path, ray_here: Any, request: pytest.FixtureRequest
) -> None:
    server: S3Server | None = None if place == "disk" else request.getfixturevalue("s3")
    task = RepeatedTask(tmp_path, server)
    pictures = [Picture(number) for number in range(ROWS)]
    lake = str(tmp_path) if server is None else f"s3://{server.new_bucket()}/lake"
    images = folder_at(lake, None if server is None else server.credentials)
    references = keep(images, [f"{n}.png" for n in range(ROWS)], [one.content() for one in pictures])
    source = write(task, image=references)
    slow = {"engine_args": {"seconds_per_token": 0.3, "max_num_seqs": 4}}
    asked = {**source, **REFERENCES, "image_roots": [lake], "flush_interval": 0.2}

    task.stopped(f"item r{ROWS - 1}?", **asked, **slow)
    before = task.kept()
    manifest = task.run(**asked)

    assert 0 < before < ROWS
    assert manifest.counts.resumed >= before
    assert answers(manifest, task.out) == {
        f"r{number}": said(number, one) for number, one in enumerate(pictures)
    }


@pytest.mark.turn(2)
def test_an_image_is_known_by_its_content(task: RepeatedTask, tmp_path: Path) -> None:
    contents = [Picture(number % 10).content() for number in range(20)]
    lake = folder_at(str(tmp_path / "lake"))
    asked = {"reuse": str(tmp_path / "responses"), "prompt": "What is that?", "images": "image"}
    asked["image_roots"] = [lake.uri]
    first = keep(lake, [f"{number}.png" for number in range(20)], contents)
    others = keep(lake, [f"other {number}.png" for number in range(20)], contents[::-1])
    new = keep(lake, ["new.png"], [Picture(99).content()])

    assert task.asked(task.run(**write(task, image=first), **asked)) == 10
    again = [{"path": place} for place in [*others, *new]] + [{"bytes": content} for content in contents]
    assert task.asked(task.run(run_id="r2", **write(task, image=again), **asked)) == 1


def test_a_bad_image_fails_alone(task: RepeatedTask, tmp_path: Path) -> None:
    lake, secret = folder_at(str(tmp_path / "lake")), folder_at(str(tmp_path / "lake-secret"))
    good = Picture(1).content()
    names = ["good.png", "text.png", "cut.png", "large.bmp"]
    found = keep(lake, names, [good, b"no picture", good[:-30], Picture(2).content("BMP") + bytes(9000)])
    outside = keep(secret, ["key.png"], [good])[0]
    (tmp_path / "lake" / "link.png").symlink_to(tmp_path / "lake-secret" / "key.png")
    bad = {
        found[1]: "a format that is not read",
        found[2]: "cut off",
        found[3]: "max_image_bytes",
        outside: "image_roots",
        f"{lake.uri}/link.png": "image_roots",
        f"{lake.uri}/../lake-secret/key.png": "the name '..'",
        f"{lake.uri}/missing.png": "missing.png",
        "https://images.example.com/1.png": "image_hosts",
        "http://169.254.169.254/latest": "are read from s3://",
    }
    source = write(task, image=[found[0], *bad])

    manifest = task.run(
        **source, **REFERENCES, image_roots=[lake.uri], id_column="id", max_image_bytes=9000, max_errors=20
    )

    assert answers(manifest) == {"r0": said(0, Picture(1))}
    assert manifest.counts.errors_by_step == {"media": len(bad)}
    letters = dead_letters(manifest)
    for number, words in enumerate(bad.values(), 1):
        assert words in letters[f"r{number}"]["reason"], letters[f"r{number}"]
    assert task.asked(manifest) == 1


KILLING = """
import os, signal
from airflow_provider_raybatch.job.media.load import load
from airflow_provider_raybatch.job.replica import row_images

def load_or_die(images, access):
    if any(b"deadly" in image.content for image in images):
        os.kill(os.getpid(), signal.SIGKILL)  # as a bug of a decoder does
    return load(images, access)

row_images.load = load_or_die

def ask(row):
    return f"What is on item {row['id']}?"
"""


@pytest.mark.slow
@pytest.mark.turn(4)
def test_an_image_that_kills_its_decoder_fails_alone(task: RepeatedTask, modules: Path) -> None:
    (modules / "deadly_pictures.py").write_text(KILLING)
    pictures = [Picture(number) for number in range(10)]
    contents = [one.content() for one in pictures]
    contents[7] += b"deadly"
    source = write(task, image=contents)

    manifest = task.run(
        **source, images="image", prompt_function="deadly_pictures:ask", id_column="id", max_errors=1
    )

    assert answers(manifest) == {
        f"r{number}": said(number, one) for number, one in enumerate(pictures) if number != 7
    }
    assert "ended each of 3 times" in dead_letters(manifest)["r7"]["reason"]
    assert len(manifest.replicas) == 1  # no engine ended
