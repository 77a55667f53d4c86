# SPDX-License-Identifier: Apache-2.0
"""The report that a user means: of a destination, of a manifest, or of one run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile

from airflow_provider_raybatch.cli.places import quietly_with, subfolders
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.journal import JournalEntry, parse_entry
from airflow_provider_raybatch.contract.layout import (
    JOURNAL,
    MANIFESTS,
    NEWEST_MANIFEST,
    PARTS,
    REPORT_DATA,
    REPORT_PAGE,
    report_folder,
)
from airflow_provider_raybatch.contract.manifest import BatchManifest, parse_manifest
from airflow_provider_raybatch.contract.report import Report, parse_report
from airflow_provider_raybatch.dataset import s3_credentials
from airflow_provider_raybatch.storage.folder import Folder, folder

_MOST_RUNS = 100
"""Folders of runs, and entries of a journal, that are looked at."""


def find_report(place: str, aws_conn_id: str | None, run_id: str | None = None) -> Report:
    """The newest report.

    :param place: a destination, a folder with destinations of runs, or the uri of a manifest or a report.
    :param run_id: of the DAG run; by default any.
    :raises SpecError: there is none, or its file is broken.
    :raises StorageError: `place` can't be read.
    """
    return quietly_with(aws_conn_id, lambda: _find(place, aws_conn_id, run_id))


def _find(place: str, aws_conn_id: str | None, run_id: str | None) -> Report:
    credentials = s3_credentials(place, aws_conn_id)

    def opened(uri: str) -> Folder:
        return folder(uri, credentials)

    if place.endswith((".json", ".html")):
        return _of_file(place, opened)
    here = opened(place)
    found = _newest(here, run_id)
    runs = () if found is not None else reversed(subfolders(here)[-_MOST_RUNS:])
    for name in runs:
        found = found or _newest(opened(f"{here.uri}/{name}"), run_id)
    if found is None:
        run = f" of the run {run_id!r}" if run_id is not None else ""
        raise SpecError(
            f"report: there is none{run} at {place}, nor in a folder in it; give the destination of a batch "
            "inference that has run."
        )
    return found


def _of_file(place: str, opened: Callable[[str], Folder]) -> Report:
    """The report in a file, beside a page, or of a manifest."""
    above, _, name = place.rpartition("/")
    if name in (REPORT_DATA, REPORT_PAGE):
        return _read(opened(above), REPORT_DATA)
    destination, _, last = above.rpartition("/")
    if last == MANIFESTS:
        return _committed(opened(destination), f"{MANIFESTS}/{name}")
    return _committed(opened(above), name)


def _read(place: Folder, path: str) -> Report:
    return parse_report(place.read(path), f"report: {place.uri}/{path}")


def _newest(place: Folder, run_id: str | None) -> Report | None:
    """The newest report in a destination, whether its job has published a dataset or not."""
    entries = [entry for entry in _journal(place) if run_id in (None, entry.owner.run_id)]
    found: list[tuple[str, Report | str]] = [
        (one.created_at, one) for one in _written(place) if run_id in (None, one.task.run_id)
    ]
    found += _lost(place, entries)
    manifest = _newest_manifest(place, run_id, entries)
    if manifest is not None:
        found.append((_manifest(place, manifest).created_at, manifest))
    newest = max(found, key=lambda pair: pair[0])[1] if found else None
    return _committed(place, newest) if isinstance(newest, str) else newest


def _newest_manifest(place: Folder, run_id: str | None, entries: Sequence[JournalEntry]) -> str | None:
    if run_id is None:
        return None if place.head(NEWEST_MANIFEST) is None else NEWEST_MANIFEST
    for entry in entries:
        if entry.kind == "commit" and entry.published is not None:
            return entry.published.manifest
    return None


def _manifest(place: Folder, file: str) -> BatchManifest:
    return parse_manifest(place.read(file), f"manifest: {place.uri}/{file}")


def _committed(place: Folder, file: str) -> Report:
    """The report of a commit.

    :param file: the manifest, relative to `place`.
    :raises SpecError: it is not there.
    """
    named = file if file != NEWEST_MANIFEST else _manifest(place, file).manifest_uri
    commit = named.rpartition("/")[2].removesuffix(".json")
    path = f"{report_folder(commit)}/{REPORT_DATA}"
    if place.head(path) is None:
        raise SpecError(f"report: {place.uri}/{path} is missing, so the dataset has none; see its job's log.")
    return _read(place, path)


def _written(place: Folder) -> Iterator[Report]:
    """Reports of runs without a dataset, as their jobs wrote them."""
    for name in subfolders(place, PARTS)[-_MOST_RUNS:]:
        path = f"{PARTS}/{name}/{REPORT_DATA}"
        if place.head(path) is not None:
            yield _read(place, path)


def _lost(place: Folder, entries: Sequence[JournalEntry]) -> list[tuple[str, Report]]:
    """The newest run that has claimed the destination since the last commit, and whose job is gone.

    A killed driver writes no report, so this one is made of what it left.

    :returns: with the time of the claim.
    """
    claims = takewhile(lambda entry: entry.kind == "claim", entries)
    newest = {entry.owner.digest: entry for entry in reversed(list(claims))}
    for entry in sorted(newest.values(), key=lambda one: one.number, reverse=True):
        from airflow_provider_raybatch.job.output.unfinished import report_of_run

        made = report_of_run(place, entry.owner)
        if made is not None:
            return [(entry.at, made)]
    return []


def _journal(place: Folder) -> Iterator[JournalEntry]:
    """Entries that can be read, newest first."""
    paths = sorted(entry.path for entry in place.list(JOURNAL) if entry.path.endswith(".json"))
    for path in reversed(paths[-_MOST_RUNS:]):
        with suppress(SpecError):
            yield parse_entry(place.read(path), path)
