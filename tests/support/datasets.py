# SPDX-License-Identifier: Apache-2.0
"""Datasets as tasks find them: results of a batch inference, and of a writer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.manifest import BatchManifest, Column, ManifestFile
from airflow_provider_raybatch.contract.run_numbers import Counts, StepCounts, Tokens
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.dataset.writer import DatasetWriter


def inferred(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    schema: pa.Schema | None = None,
    letters: Sequence[dict[str, Any]] = (),
    map_index: int = -1,
    steps: list[StepCounts] | None = None,
) -> dict[str, Any]:
    """Commit a batch inference of two files; return the XCom fields that matter here.

    :param letters: dead letters.
    :param steps: the counts of its steps.
    """
    table = pa.Table.from_pylist(list(rows), schema=schema)
    data = folder / "data/one"
    data.mkdir(parents=True)
    half = (len(rows) + 1) // 2
    files = []
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        path = data / f"part-{number:05d}.parquet"
        pq.write_table(part, path)
        files.append(ManifestFile(path=path.name, rows=part.num_rows, bytes=path.stat().st_size))
    if letters:
        (folder / "dead_letters/one").mkdir(parents=True)
        lines = "".join(json.dumps(letter) + "\n" for letter in letters)
        (folder / "dead_letters/one/part-00000.jsonl").write_text(lines)
    manifest = BatchManifest(
        uri=str(data),
        manifest_uri=str(folder / "manifests/one.json"),
        format="parquet",
        files=files,
        columns=[Column(name=one.name, type=str(one.type)) for one in table.schema],
        dead_letter_uri=str(folder / "dead_letters/one") if letters else None,
        counts=Counts(
            input=len(rows) + len(letters),
            ok=len(rows),
            error=len(letters),
            errors_by_step=Counter(letter["step"] for letter in letters),
            reused=1 if rows else 0,
            duplicates=2 if rows else 0,
        ),
        tokens=Tokens(input=10, cached=4, output=5),
        tokens_paid=12,
        tokens_saved=3,
        gpu_seconds=6.5,
        steps=steps,
        owner=TaskKey(dag_id="d", run_id="r", task_id="t", map_index=map_index),
        run_token="token",
        submission_id="job",
        created_at="2026-01-01T00:00:00Z",
    )
    text = manifest.model_dump_json(by_alias=True)
    (folder / "manifests").mkdir()
    (folder / "manifests/one.json").write_text(text)
    (folder / "manifest.json").write_text(text)
    return manifest.summary().model_dump(mode="json")


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def written(folder: Path, *batches: pa.RecordBatch, **options: Any) -> dict[str, Any]:
    return written_from(folder, batches, **options)


def written_from(folder: Path, batches: Iterable[pa.RecordBatch], **options: Any) -> dict[str, Any]:
    with DatasetWriter(str(folder), **options) as writer:
        for one in batches:
            writer.write(one)
    return writer.result
