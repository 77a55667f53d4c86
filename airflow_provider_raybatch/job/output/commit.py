# SPDX-License-Identifier: Apache-2.0
"""Publish the finished rows as one immutable dataset: its files first, and last the entry that names it."""

from __future__ import annotations

import datetime
import io
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import (
    BatchManifest,
    Column,
    Counts,
    ManifestFile,
    Tokens,
)
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.table import as_parquet
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.output.manifest_copy import renew_copy
from airflow_provider_raybatch.job.output.publish import (
    PublishedRange,
    Target,
    postprocess,
    publish,
    ranges,
    write_rows,
)
from airflow_provider_raybatch.job.output.report import Report
from airflow_provider_raybatch.job.output.schema import footers, input_types
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.tasks.base import Totals
from airflow_provider_raybatch.job.tasks.postprocess import Postprocess, column_types
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.job.work import Spread, in_sequence
from airflow_provider_raybatch.storage.folder import Folder

_PART_BYTES = 128 * 1024 * 1024
_LARGEST_RANGE_ROWS = 1_000_000


def prepare(
    spec: BatchInferenceSpec,
    folder: Folder,
    journal: Journal,
    parts: Sequence[Part],
    expected_rows: int,
    report: Report,
    source: pa.Schema,
    spread: Spread[Any] = in_sequence,
) -> BatchManifest:
    """Write every row of the input once, and the manifest; readers see none of it before :func:`commit`.

    :param parts: of all submissions that count.
    :param expected_rows: rows of the input.
    :param source: input columns as preflight saw them: the only information if no row was read.
    :raises SupersededError: another submission claimed the destination.
    :raises RaybatchError: a row is missing or double; nothing was published.
    """
    if spec.submission is None:
        raise ValueError("submission: only a submitted spec can be committed")
    began = time.monotonic()
    journal.check()
    name = f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
    parts = sorted(parts, key=lambda part: part.first)
    seen, task = footers(folder, parts), task_of(spec)
    notes = Postprocess(spec.postprocess, f"{layout.POSTPROCESS}/{name}") if spec.postprocess else None
    target = Target(
        folder=folder,
        data=f"{layout.DATA}/{name}",
        dead_letter=f"{layout.DEAD_LETTER}/{name}",
        format=spec.destination_format,
        inputs=input_types(seen, source, task.names.values()),
        task=task,
        own_parts=report.part_folder,
        run=spec.submission.run_id,
        postprocess=notes,
    )
    decoded = {part.path: footer.decoded for part, footer in zip(parts, seen, strict=True)}
    found = ranges(parts, _rows_per_range(spec, parts), expected_rows, decoded)
    if notes is not None:
        types = column_types(spread(postprocess, found, target))
        target = replace(target, postprocess=replace(notes, types=types))
    done: list[PublishedRange] = list(spread(publish, found, target))
    if notes is not None:
        folder.delete([*(notes.path(range_.number) for range_ in found), notes.notes])
    rows, errors = sum(one.rows for one in done), sum(one.errors for one in done)
    if rows + errors != expected_rows:
        raise RaybatchError(
            f"commit: {count_of(rows + errors, 'row is', 'rows are')} finished, but the input has "
            f"{expected_rows:,}; nothing was published.",
            FailureClass.INTERNAL,
        )
    if not rows:
        # A reader of the folder must find a valid, empty dataset rather than nothing.
        done.append(PublishedRange(*write_rows(target.schema.empty_table(), 0, target), 0, 0))
    origins = sum((Counter(one.origins) for one in done), Counter[str]())
    totals = sum((one.totals for one in done), Totals())
    manifest = BatchManifest(
        uri=f"{folder.uri}/{target.data}",
        manifest_uri=f"{folder.uri}/{layout.manifest_file(name)}",
        dead_letter_uri=f"{folder.uri}/{target.dead_letter}" if errors else None,
        format=spec.destination_format,
        ordered=spec.preserve_order,
        files=[
            ManifestFile(path=one.path[len(target.data) + 1 :], rows=one.rows, bytes=one.bytes)
            for one in done
            if one.path is not None
        ],
        schema=[Column(name=column.name, type=str(column.type)) for column in _as_read(target.schema)],
        counts=Counts(
            input=expected_rows,
            ok=rows,
            error=errors,
            resumed=origins["carried"],
            reused=origins["stored"],
            duplicates=origins["duplicate"],
            errors_by_step=dict(sum((Counter(one.failed_steps) for one in done), Counter())),
        ),
        tokens=Tokens(
            input=totals.input_tokens,
            cached=totals.cached_tokens,
            output=totals.output_tokens,
            filled=sum(footer.filled for footer in seen),
        ),
        tokens_paid=sum(
            footer.paid for part, footer in zip(parts, seen, strict=True) if part.is_of(target.run)
        ),
        tokens_saved=sum(one.saved for one in done),
        gpu_seconds=round(report.gpu_seconds, 1),
        finish_reasons=dict(totals.finish_reasons),
        timing=report.timing.model_copy(update={"commit_seconds": round(time.monotonic() - began, 2)}),
        stages=report.stages,
        replicas=report.replicas,
        effective_sampling=report.effective_sampling,
        plan=report.plan,
        digests=report.digests,
        versions=report.versions,
        owner=spec.submission.task,
        run_token=spec.submission.run_token,
        submission_id=spec.submission.submission_id,
        created_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )
    folder.write(layout.manifest_file(name), manifest.model_dump_json(by_alias=True, indent=1).encode())
    return manifest


def commit(folder: Folder, journal: Journal, manifest: BatchManifest) -> None:
    """Publish what :func:`prepare` wrote. A few small requests, however large the dataset.

    :raises SupersededError: another submission claimed the destination; nothing was published.
    """
    journal.commit(manifest.manifest_uri.removeprefix(f"{folder.uri}/"))
    renew_copy(folder, journal)


def _as_read(schema: pa.Schema) -> pa.Schema:
    """The schema that readers of Parquet see, which has fewer types and its own names inside of lists."""
    return pq.read_schema(io.BytesIO(as_parquet(schema.empty_table())))


def _rows_per_range(spec: BatchInferenceSpec, parts: Sequence[Part]) -> int:
    if spec.rows_per_part is not None:
        return spec.rows_per_part
    rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
    return max(1, min(_LARGEST_RANGE_ROWS, int(_PART_BYTES / max(1.0, size / max(1, rows)))))
