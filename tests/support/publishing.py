# SPDX-License-Identifier: Apache-2.0
"""Writes parts and datasets as a job does, without Ray."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.manifest import BatchManifest, RunStatistics
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.table import table_of
from airflow_provider_raybatch.job.output.commit import commit, prepare
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.parts.part import Part, write_all
from airflow_provider_raybatch.job.row import Completion, Response, RowFailure, RowOutcome
from airflow_provider_raybatch.job.tasks.generate import Generate
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.specs import spec as spec_of
from tests.support.specs import submitted

ONE, SEVERAL = Generate(spec_of()), Generate(spec_of(sampling={"n": 2}))
"""Tasks of a job with one completion a row, and with more."""


def response(text: str = "ok", *more: str, reason: str = "stop") -> Response:
    """Return a response with a completion for each text; a word is a token."""
    completions = tuple(Completion(one, reason, len(one.split())) for one in (text, *more))
    return Response(completions, input_tokens=3, cached_tokens=1)


def failure(step: str = "engine", reason: str = "it broke") -> RowFailure:
    return RowFailure(step, reason)


def part(
    folder: Folder,
    rows: Sequence[dict[str, Any]] | pa.Table,
    results: Sequence[Response | RowFailure] | None = None,
    first: int = 0,
    ordinals: Sequence[int] | None = None,
    submission: int = 0,
    completions: bool = False,
    run: str = "_raybatch/parts/task/run",
) -> Part:
    """Write a part: `rows` from ordinal `first` on, all with the same response unless `results` is set."""
    table = rows if isinstance(rows, pa.Table) else table_of(rows)
    positions = list(ordinals if ordinals is not None else range(first, first + len(rows)))
    answers = results or [response(f"r{position}") for position in positions]
    outcomes = [
        RowOutcome(position, answer, '{"prompt":"p"}' if isinstance(answer, RowFailure) else "")
        for position, answer in zip(positions, answers, strict=True)
    ]
    path = f"{run}/raybatch-x-{submission}/{positions[0]:08d}"
    (written,) = write_all(folder, path, table, outcomes, SEVERAL if completions else ONE)
    return written


def publish(
    folder: Folder,
    parts: Sequence[Part],
    rows: int,
    spec: BatchInferenceSpec | None = None,
    schema: pa.Schema | None = None,
    statistics: RunStatistics | None = None,
    own_parts: str = "",
    **fields: Any,
) -> BatchManifest:
    """Claim and commit."""
    whole = spec or submitted(**{"destination": folder.uri, **fields})
    assert whole.submission is not None
    journal = Journal(folder, whole.submission, take_over=False, fingerprint=whole.fingerprint)
    journal.claim()
    manifest = prepare(
        whole, journal, parts, rows, statistics or RunStatistics(), schema or pa.schema([]), own_parts
    )
    commit(journal, manifest)
    return manifest


def commit_only(
    journal: Journal, parts: Sequence[Part], rows: int, spec: BatchInferenceSpec
) -> BatchManifest:
    """Commit for a journal that has claimed."""
    manifest = prepare(spec, journal, parts, rows, RunStatistics(), pa.schema([]), "")
    commit(journal, manifest)
    return manifest


def publish_rows(folder: Folder, rows: Sequence[dict[str, Any]] | None, token: str = "token") -> Any:
    """Publish a dataset of `rows`; ``None`` only claims the folder."""
    if rows is None:
        submission = submitted(token=token).submission
        Journal(folder, submission, take_over=False).claim()
        return None
    written = part(folder, rows, run=f"_raybatch/parts/{token}")
    return publish(folder, [written], len(rows), submitted(token=token, destination=folder.uri))


def rows_of(folder: Folder, manifest: BatchManifest) -> list[dict[str, Any]]:
    """Return the rows of the dataset as a reader of its files sees them."""
    data = manifest.uri[len(folder.uri) + 1 :]
    out: list[dict[str, Any]] = []
    for file in manifest.files:
        content = folder.read(f"{data}/{file.path}")
        assert len(content) == file.bytes
        if manifest.format == "parquet":
            table = pq.read_table(io.BytesIO(content))
            assert [f"{f.name}: {f.type}" for f in table.schema] == [
                f"{c.name}: {c.type}" for c in manifest.columns
            ]
            rows = table.to_pylist()
        else:
            rows = [json.loads(line) for line in content.decode().split("\n")[:-1]]
        assert len(rows) == file.rows
        out += rows
    there = [entry.path for entry in folder.list(data)]
    assert there == [f"{data}/{file.path}" for file in manifest.files]
    return out


def dead_letters(folder: Folder, manifest: BatchManifest) -> list[dict[str, Any]]:
    if manifest.dead_letter_uri is None:
        return []
    files = folder.list(manifest.dead_letter_uri[len(folder.uri) + 1 :])
    return [json.loads(line) for file in files for line in folder.read(file.path).decode().splitlines()]
