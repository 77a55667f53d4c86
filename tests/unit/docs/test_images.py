# SPDX-License-Identifier: Apache-2.0
"""The DAG files with pictures, each played on a small lake in this process, with the `echo` engine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset import open_dataset
from airflow_provider_raybatch.storage.folder import folder
from tests.support.numbered_pictures import Picture
from tests.support.publishing import dead_letters
from tests.support.whole_job import infer, without_cluster

from ...support.documents import blocks

BROKEN = b"no picture"


class Played:
    """A DAG file of the documentation, whose lake is a folder.

    :param lake: in place of the bucket.
    :param night: in place of what Airflow renders.
    """

    def __init__(self, name: str, lake: Path, night: str) -> None:
        (block,) = [block for block in blocks("python") if f"def {name}():" in block.text]
        code = re.sub(r"\{\{.*?\}\}", night, block.text.replace("s3://lake", lake.as_uri()))
        self.names: dict[str, Any] = {}
        exec(re.sub(r"\n(\w+)\(\)\n*$", r"\nmade = \1()", code), self.names)
        self._dag = self.names["made"]

    def call(self, task_id: str, *arguments: Any) -> Any:
        """Run the function of a task; without arguments, with those of the DAG."""
        task = self._dag.get_task(task_id)
        return task.python_callable(*(arguments or task.op_args))

    def infer(self, task_id: str, **changed: Any) -> tuple[dict[str, str], BatchManifest]:
        """Run a batch inference; return its result and manifest."""
        task = self._dag.get_task(task_id)
        task.engine, task.engine_args = "echo", {}
        result = {"manifest_uri": infer(task, **changed).manifest_uri}
        return result, open_dataset(result).manifest


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_cluster(monkeypatch)
    for name in ("photos", "rows", "scans"):
        (tmp_path / "lake" / name).mkdir(parents=True)
    return tmp_path / "lake"


def rows_of(result: Mapping[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = open_dataset(result).to_arrow().to_pylist()
    return rows


def steps(manifest: BatchManifest) -> list[str]:
    """The steps of the dead letters."""
    destination = folder(str(manifest.dead_letter_uri).rpartition("/dead_letter/")[0])
    return [letter["step"] for letter in dead_letters(destination, manifest)]


def store(photos: Path, names: Sequence[str]) -> dict[str, Picture]:
    """Write a picture under each name; return them by their references."""
    pictures = {}
    for number, name in enumerate(names):
        picture = pictures[(photos / name).as_uri()] = Picture(number)
        (photos / name).write_bytes(picture.content())
    return pictures


def test_each_row_has_its_picture_and_its_text(lake: Path) -> None:
    pictures = [Picture(number) for number in range(5)]
    rows = [{"place": f"town {one.number}", "photo": one.content()} for one in pictures]
    pq.write_table(pa.Table.from_pylist(rows), lake / "photos/1.parquet")

    result, _ = Played("tagged_photos", lake, "night").infer("tag", source=str(lake / "photos/1.parquet"))

    assert {row["place"]: row["response"] for row in rows_of(result)} == {
        f"town {one.number}": f"{one.said} Name the main thing in this picture of town {one.number}."
        for one in pictures
    }


def test_captions_are_of_the_pictures_of_a_folder(lake: Path) -> None:
    pictures = store(lake / "photos", [f"{number}.png" for number in range(120)])
    (lake / "photos/broken.jpg").write_bytes(BROKEN)
    (lake / "photos/notes.txt").write_text("no row")
    first = Played("captions", lake, "2026-01-01")

    result, manifest = first.infer("describe", source=first.call("list_pictures"))

    said = {row["picture"]: row["response"] for row in rows_of(result)}
    assert said.keys() == pictures.keys()
    assert all(said[uri].startswith(one.said) for uri, one in pictures.items())
    assert steps(manifest) == ["media"]


def test_captions_of_moved_pictures_are_not_asked_again(lake: Path) -> None:
    store(lake / "photos", [f"{number}.png" for number in range(20)])
    first = Played("captions", lake, "2026-01-01")
    first.infer("describe", source=first.call("list_pictures"))
    for number in range(20):
        (lake / f"photos/{number}.png").rename(lake / f"photos/moved {number}.png")
    (lake / "photos/new.png").write_bytes(Picture(77).content())
    second = Played("captions", lake, "2026-01-02")

    result, manifest = second.infer("describe", source=second.call("list_pictures"))

    assert (manifest.counts.ok, manifest.counts.reused) == (21, 20)
    assert sum("moved " in row["picture"] for row in rows_of(result)) == 20


def test_fields_of_scanned_invoices_are_typed_columns(lake: Path) -> None:
    pages = [[Picture(number).content(), Picture(200 + number).content("JPEG")] for number in range(60)]
    pages[7][1] = BROKEN
    files = [f"{number}.pdf" for number in range(60)]
    pq.write_table(pa.table({"file": files, "pages": pages}), lake / "scans/1.parquet")
    (shown,) = [block.text for block in blocks("text") if block.text.startswith('images={"images": "pages"')]
    arguments = {**eval(f"dict({shown})"), "engine_args": {}, "id_column": "file", "max_error_fraction": 0.02}

    result, manifest = Played("invoices", lake, "night").infer(
        "extract", source=str(lake / "scans/1.parquet"), **arguments
    )

    read = open_dataset(result).to_arrow()
    types = {name: str(read.schema.field(name).type) for name in ("number", "state", "total")}
    assert types == {"number": "string", "state": "string", "total": "double"}
    assert "pages" not in read.column_names
    assert set(read["file"].to_pylist()) == set(files) - {"7.pdf"}
    assert steps(manifest) == ["media"]
