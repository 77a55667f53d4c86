# SPDX-License-Identifier: Apache-2.0
"""``raybatch show``: a finished dataset, its dead letters, a response store, or warm engines."""

from __future__ import annotations

import uuid
from argparse import Namespace
from collections.abc import Iterator
from itertools import islice

from rich.filesize import decimal

from airflow_provider_raybatch.cli.places import absolute, dataset_at, s3_access
from airflow_provider_raybatch.cli.terminal import Row, print_rows, quietly
from airflow_provider_raybatch.contract.events import MARKER, Notice
from airflow_provider_raybatch.contract.failures import RaybatchError, SpecError
from airflow_provider_raybatch.contract.layout import STORE_MARK
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.text import clean, count_of
from airflow_provider_raybatch.dataset import Dataset, DatasetError
from airflow_provider_raybatch.dataset.rows import letters
from airflow_provider_raybatch.storage.folder import Folder, folder

_POLL = 1.0
_BATCH = 1024
_OF_DEAD_LETTERS: tuple[str, ...] = ("ordinal", "step", "reason", "row")


def show(options: Namespace) -> None:
    """Show what lies at a place, or the warm engines.

    :raises SpecError: neither or both are asked for, or the limit is negative.
    :raises DatasetError: nothing of a batch inference is at the place.
    """
    if options.engines == (options.place is not None):
        raise SpecError("place: give either a place or --engines.")
    if options.engines:
        _show_engines(options)
        return
    if options.limit < 0:
        raise SpecError(f"limit: it must be 0, for all rows, or more, but it is {options.limit}.")
    uri = absolute(options.place)
    place = folder(uri, s3_access(uri, options.aws_conn_id))
    if place.head(STORE_MARK) is not None:
        _show_store(place, options.compact)
    else:
        _show_dataset(dataset_at(uri, options.aws_conn_id), options)


def _show_store(place: Folder, compact: bool) -> None:
    from airflow_provider_raybatch.job.reuse.store.store import ResponseStore

    store = ResponseStore(place, _tell)
    if compact:
        print(store.compact())
    print(store.size().text())


def _tell(notice: Notice) -> None:
    print(notice.text())


def _show_dataset(dataset: Dataset, options: Namespace) -> None:
    manifest, first = dataset.manifest, _OF_DEAD_LETTERS
    found: Iterator[Row]
    if options.failed:
        found = letters(manifest, s3_access(manifest.dead_letter_uri or "", options.aws_conn_id))
        total, what = manifest.counts.error, "failed row"
    else:
        found = _rows(dataset, options.limit)
        first, total, what = _responses(manifest), manifest.counts.dataset_rows, "row"
    print_rows(islice(found, options.limit or None), options.format, first)
    if options.format == "table":
        line = f"{min(options.limit or total, total):,} of {count_of(total, what)} of {manifest.uri}"
        print(line if options.failed else f"{line}: {_totals(manifest)}")


def _totals(manifest: BatchManifest) -> str:
    counts, size = manifest.counts, decimal(sum(file.bytes for file in manifest.files))
    return (
        f"{count_of(len(manifest.files), 'file')}, {size}; "
        f"{counts.ok:,} of {count_of(counts.input, 'row')} ok, {counts.error:,} failed"
    )


def _rows(dataset: Dataset, limit: int) -> Iterator[Row]:
    try:
        # Little is read for a few rows.
        size = min(limit or _BATCH, _BATCH)
        for batch in dataset.arrow_dataset().to_batches(batch_size=size, batch_readahead=0):
            yield from batch.to_pylist()
    except (ValueError, OSError) as error:  # of pyarrow, which has both for damage
        raise DatasetError(f"files: {dataset.manifest.uri} can't be read ({error}).") from error


def _responses(manifest: BatchManifest) -> tuple[str, ...]:
    """What a table shows even where it has no room for all: the response, under its usual names."""
    return tuple(column.name for column in manifest.columns if column.name.endswith("response"))


def _show_engines(options: Namespace) -> None:
    """List warm engines, or end them. A job on the cluster does it, so this needs no Ray."""
    from airflow_provider_raybatch.cluster.follow.loop import follow_to_the_end
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.cluster.follow.poll import Followed
    from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.submit.request import build_warm_engines_request
    from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID
    from airflow_provider_raybatch.hooks.ray import RayHook

    address = quietly(RayHook(options.conn_id or DEFAULT_CONN_ID).get_address)

    async def ask() -> Outcome:
        submission_id = f"raybatch-warm-engines-{uuid.uuid4().hex[:8]}"
        async with RayJobsClient(address) as client:
            await client.submit(await build_warm_engines_request(client, submission_id, end=options.end))
        job = Followed(submission_id, poll_interval=_POLL)
        return await follow_to_the_end(address, job, PrintedOfJob())

    outcome = run_blocking(ask())
    if outcome.failure_class is not None:
        raise RaybatchError(outcome.message, outcome.failure_class)


class PrintedOfJob:
    """Prints what a job says; the part of a logger that followers of a job use.

    Without what Ray says around it, what steers a terminal, and the signed documents of events.
    """

    def info(self, event: str, *args: object) -> None:
        """Print a line, unless it is Ray's."""
        from airflow_provider_raybatch.cluster.follow.log_tail import for_task_log

        line = for_task_log(event % args if args else event, batch=True)
        if line is not None:
            sentence, marker, _ = line.rpartition(MARKER)
            print(clean(sentence.rstrip() if marker else line), flush=True)

    warning = error = info
