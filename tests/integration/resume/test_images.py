# SPDX-License-Identifier: Apache-2.0
"""Rows with images, which tasks of a Ray load: each is asked with its own, and one that kills fails alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.numbered_pictures import Picture, source_of
from tests.support.repeated_task import RepeatedTask, answers, letters_of, rows_of

ROWS = 48
DEADLY = 7
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


def test_an_image_that_kills_its_decoder_fails_alone(task: RepeatedTask, modules: Path) -> None:
    """All other rows have their own images."""
    (modules / "deadly_pictures.py").write_text(KILLING)
    fronts = [Picture(number) for number in range(ROWS)]
    backs = [Picture(ROWS + number) if number % 3 else None for number in range(ROWS)]
    contents = [one.content() + b"deadly" * (one.number == DEADLY) for one in fronts]
    asked: dict[str, Any] = source_of(
        task.folder,
        front=[{"bytes": content, "path": f"{number}.png"} for number, content in enumerate(contents)],
        back=[one and one.content("BMP") for one in backs],
    )
    asked |= {"images": ["front", "back"], "prompt_function": "deadly_pictures:ask", "id_column": "id"}
    asked |= {"max_errors": 1, "max_row_attempts": 1}

    manifest = task.run(**asked, replicas=2)

    others = [number for number in range(ROWS) if number != DEADLY]
    assert answers(manifest) == {
        f"r{number}": " ".join([
            *(one.said for one in (fronts[number], backs[number]) if one),
            f"What is on item r{number}?",
        ])
        for number in others
    }
    (letter,) = letters_of(manifest)
    assert (letter["id"], "ended each of 3 times" in letter["reason"]) == (f"r{DEADLY}", True)
    assert len(manifest.replicas) <= 2  # no engine ended
    assert {"front", "back"}.isdisjoint(rows_of(manifest)[0])  # they hold bytes
    assert manifest.stages.load_images > 0
    kept = rows_of(task.run(token="kept", **asked, keep_images=True))
    assert task.asked_in_all() == len(others)
    assert {row["id"]: row["front"]["bytes"] for row in kept} == {
        f"r{number}": contents[number] for number in others
    }
