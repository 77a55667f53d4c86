# SPDX-License-Identifier: Apache-2.0
"""The report that a user means: of a destination, of a manifest, or of one run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.dataset import s3_credentials
from airflow_provider_raybatch.storage.folder import Folder, folder

_MOST_RUNS = 100
"""Folders of runs, and entries of a journal, that are looked at."""


@dataclass(frozen=True)
class WantedReport:
    """Which of several reports; ``None`` for any."""

    run_id: str | None = None
    dag_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None

    def fits(self, task: TaskKey) -> bool:
        """Whether a job of `task` is meant."""
        pairs = (
            (self.run_id, task.run_id),
            (self.dag_id, task.dag_id),
            (self.task_id, task.task_id),
            (self.map_index, task.map_index),
        )
        return all(wanted is None or wanted == found for wanted, found in pairs)


def find_report(place: str, aws_conn_id: str | None, wanted: WantedReport) -> Report:
    """The newest report that fits.

    :param place: a destination, a folder with destinations of runs, or the uri of a manifest or a report.
    :raises SpecError: there is none, or its file is broken.
    :raises StorageError: `place` can't be read.
    """
    return quietly_with(aws_conn_id, lambda: _find(place, aws_conn_id, wanted))


def _find(place: str, aws_conn_id: str | None, wanted: WantedReport) -> Report:
    credentials = s3_credentials(place, aws_conn_id)

    def opened(uri: str) -> Folder:
        return folder(uri, credentials)

    if place.endswith((".json", ".html")):
        return _of_file(place, opened)
    here = opened(place)
    found = _newest(here, wanted)
    runs = () if found is not None else reversed(subfolders(here)[-_MOST_RUNS:])
    for name in runs:
        found = found or _newest(opened(f"{here.uri}/{name}"), wanted)
    if found is None:
        run = f" of the run {wanted.run_id!r}" if wanted.run_id is not None else ""
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


def _newest(place: Folder, wanted: WantedReport) -> Report | None:
    """The newest report in a destination, whether its job has published a dataset or not."""
    entries = [entry for entry in _journal(place) if wanted.fits(entry.owner)]
    found: list[tuple[str, Report | str]] = [(one.created_at, one) for one in _written(place, wanted)]
    found += _lost(place, entries)
    manifest = _newest_manifest(place, wanted, entries)
    if manifest is not None:
        found.append((_manifest(place, manifest).created_at, manifest))
    newest = max(found, key=lambda pair: pair[0])[1] if found else None
    return _committed(place, newest) if isinstance(newest, str) else newest


def _newest_manifest(place: Folder, wanted: WantedReport, entries: Sequence[JournalEntry]) -> str | None:
    if wanted == WantedReport():
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


def _written(place: Folder, wanted: WantedReport) -> Iterator[Report]:
    """Reports of runs without a dataset, as their jobs wrote them."""
    for name in subfolders(place, PARTS)[-_MOST_RUNS:]:
        path = f"{PARTS}/{name}/{REPORT_DATA}"
        if place.head(path) is not None:
            report = _read(place, path)
            if wanted.fits(report.task):
                yield report


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
