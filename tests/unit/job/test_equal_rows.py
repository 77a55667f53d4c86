# SPDX-License-Identifier: Apache-2.0
"""Whole jobs over equal rows: the one that is asked for all may fail, or ask something else by then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.manifest import Summary
from airflow_provider_raybatch.job.media import load
from airflow_provider_raybatch.job.replica import row_images
from airflow_provider_raybatch.job.run import supervision
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.engine_log import engines
from tests.support.numbered_pictures import Picture
from tests.support.reading import as_jsonl
from tests.support.whole_job import attempt, one_replica, without_cluster

pytest.importorskip("PIL")

ONE, TWO, OTHER = Picture(1), Picture(2), Picture(3)
SOURCE = {"a": ONE, "copy": ONE, "b": OTHER}
ROWS = ("a", "a", "copy", "b", "b")


@dataclass
class World:
    """Rows about the pictures of a folder: two rows each about two of them, and one about a copy."""

    folder: Path
    patch: pytest.MonkeyPatch
    attempts: int = 0

    def __post_init__(self) -> None:
        for name, picture in SOURCE.items():
            self.write(name, picture)
        rows = [{"image": str(self.path(name)), "name": name} for name in ROWS]
        (self.folder / "in.jsonl").write_bytes(as_jsonl(rows))

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.png"

    def write(self, name: str, picture: Picture) -> None:
        self.path(name).write_bytes(picture.content())

    def cut(self, *names: str) -> None:
        for name in names:
            self.path(name).write_bytes(self.path(name).read_bytes()[:30])

    def remove(self, *names: str) -> None:
        for name in names:
            self.path(name).unlink()

    def run(self, meanwhile: Callable[[], Any] = int, **fields: Any) -> Summary:
        """Run a job; `meanwhile` is called when all is checked, and no row is asked."""

        def supervised(*given: Any) -> Any:
            meanwhile()
            return one_replica(*given)

        asking = {"prompt": "What is that?", "images": "image", "image_roots": [str(self.folder)]}
        self.attempts += 1
        with self.patch.context() as patched:
            patched.setattr(supervision, "run", supervised)
            return attempt(
                LocalFolder(str(self.folder / "out")),
                self.attempts,
                str(self.folder / "in.jsonl"),
                sampling={"temperature": 0},
                max_error_fraction=1,
                engine_args={"request_log": str(self.folder / "log"), **fields.pop("engine_args", {})},
                **{**asking, **fields},
            )

    def answers(self, summary: Summary) -> list[tuple[str, str]]:
        """The rows of the dataset by what they are about, each with what was said of it."""
        return sorted(
            (row["name"], row["response"].removesuffix(" What is that?"))
            for row in pq.read_table(summary.uri).to_pylist()
        )

    @property
    def asked(self) -> int:
        return sum(len(engine.asked) for engine in engines(self.folder / "log"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    without_cluster(monkeypatch)
    return World(tmp_path, monkeypatch)


def said(**pictures: Picture) -> list[tuple[str, str]]:
    """What a dataset says that has these pictures' rows, in :meth:`World.answers`' form."""
    return sorted((name, pictures[name].said) for name in ROWS if name in pictures)


def test_a_broken_picture_fails_all_equal_rows(world: World) -> None:
    world.cut("a", "copy")
    summary = world.run()
    assert (summary.rows, summary.errors, world.asked) == (2, 3, 1)
    assert world.answers(summary) == said(b=OTHER)


def test_too_long_a_prompt_fails_all_equal_rows(world: World) -> None:
    """It is found before the picture is read, so the row has no key."""
    summary = world.run(prompt="What is that? " * 300, engine_args={"max_model_len": 64})
    assert (summary.rows, summary.errors, world.asked) == (0, 5, 0)


@pytest.mark.parametrize("dies", [False, True], ids=["meanwhile", "after an attempt that asked none"])
class TestBeforeTheyAreAsked:
    """What equal rows are about changes."""

    @pytest.fixture(autouse=True)
    def _change(self, world: World, dies: bool) -> None:
        self.world, self.dies = world, dies

    def run(self, change: Callable[[], Any]) -> Summary:
        if self.dies:
            with pytest.raises(ZeroDivisionError):
                self.world.run(lambda: 1 / 0)
            change()
            return self.world.run()
        return self.world.run(change)

    def test_rows_about_one_file_share_what_it_is_now(self) -> None:
        summary = self.run(lambda: self.world.write("b", TWO))
        assert (summary.errors, self.world.asked) == (0, 2)
        assert self.world.answers(summary) == said(a=ONE, copy=ONE, b=TWO)

    def test_rows_about_files_that_are_gone_share_the_failure(self) -> None:
        summary = self.run(lambda: self.world.remove("a", "copy"))
        assert (summary.rows, summary.errors) == (2, 3)
        assert self.world.answers(summary) == said(b=OTHER)


@pytest.mark.parametrize("becomes", ["another", "gone"])
def test_a_copy_of_a_picture_that_changes_is_asked_about(world: World, becomes: str) -> None:
    """The one that is asked for all of them refers to a file that changes before it is loaded."""
    loaded, change = load.load, [lambda: world.write("a", TWO) if becomes == "another" else world.remove("a")]
    tried: list[str] = []

    def late(images: Any, access: Any) -> Any:
        while change:
            change.pop()()
        tried.append(Path(images[0].uri).stem)
        return loaded(images, access)

    world.patch.setattr(row_images, "load", late)
    summary = world.run()
    pictures = {"copy": ONE, "b": OTHER} | ({"a": TWO} if becomes == "another" else {})
    assert summary.errors == (0 if becomes == "another" else 2)
    assert world.answers(summary) == said(**pictures)
    assert sorted(tried) == ["a", "b", "copy"]
