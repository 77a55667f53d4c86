# SPDX-License-Identifier: Apache-2.0
"""The report of a task instance in its destination: found by the journal, and only if it names that task.

Documents are parsed within bounds: a small file may become a page of gigabytes.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.layout import (
    JOURNAL,
    REPORT_DATA,
    commit_of,
    manifest_file,
    report_folder,
    task_place,
)
from airflow_provider_raybatch.contract.manifest import (
    BatchManifest,
    JournalEntry,
    parse_entry,
    parse_manifest,
)
from airflow_provider_raybatch.contract.report import Report, parse_report
from airflow_provider_raybatch.contract.run_numbers import is_count
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.plugins.reading import Destination, NotShownError
from airflow_provider_raybatch.storage.file import in_order

MOST_VALUES = 50_000
"""Of a document, at any depth: thousands of columns and replicas have less."""
MOST_LISTED = 500
"""Files of a manifest that are kept, and columns that are shown."""
MOST_ENTRIES = 10_000
"""Files of a journal, which has two or three a run."""
MOST_READ = 200
"""Newest entries that are looked at."""
ENTRY_BYTES, MANIFEST_BYTES, REPORT_BYTES = 64 * 2**10, 16 * 2**20, 8 * 2**20

_AT_ONCE = 8
_ENTRY = re.compile(r"\d{8}\.json")
_NEVER = datetime.datetime.min.replace(tzinfo=datetime.UTC)

Document = TypeVar("Document")


@dataclass(frozen=True)
class Manifest:
    """A manifest with its first files alone.

    :param files: how many it has, with so many `bytes`.
    """

    content: BatchManifest
    files: int
    bytes: int


def report_in(content: bytes, path: str) -> Report:
    """The report in a file.

    :raises NotShownError: it is broken, foreign, of another version, or has too many values.
    """
    _check(_loaded(content), path)
    return parsed(parse_report, content, path)


def manifest_in(content: bytes, path: str) -> Manifest:
    """The manifest in a file; raises as :func:`report_in`."""
    document = _loaded(content)
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, list) or len(files) <= MOST_LISTED:
        found = files if isinstance(files, list) else []
    else:
        found, document["files"] = files, files[:MOST_LISTED]
        content = json.dumps(document).encode()
    _check(document, path)
    sizes = [one.get("bytes") for one in found if isinstance(one, dict)]
    size = sum(one for one in sizes if is_count(one))
    return Manifest(parsed(parse_manifest, content, path), len(found), size)


def parsed(parse: Callable[[bytes, str], Document], content: bytes, path: str) -> Document:
    """What `parse` makes of a file.

    :raises NotShownError: it can't.
    """
    try:
        return parse(content, path)
    except SpecError as error:
        raise NotShownError(str(error)) from error


def _loaded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None  # the contract's own parser says what is wrong


def _check(document: Any, path: str) -> None:
    """Count without recursion, and no further than needed."""
    waiting, count = [document], 0
    while waiting:
        one = waiting.pop()
        inner = list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else ()
        count += len(inner)
        if count > MOST_VALUES:
            raise NotShownError(f"{path}: it has more values than the {MOST_VALUES:,} that are shown here.")
        waiting += [each for each in inner if isinstance(each, (dict, list))]


@dataclass(frozen=True)
class TaskOutput:
    """What a destination has of one task instance.

    :param manifest: of its dataset; ``None`` where it has published none.
    :param commit: names the folders of that dataset.
    :param report: of its dataset, or of a later job without one.
    """

    manifest: Manifest | None = None
    commit: str | None = None
    report: Report | None = None


def find_report(place: Destination, keys: Collection[TaskKey]) -> TaskOutput:
    """What `place` has of a task instance.

    Paths are made of the layout's names and a commit's; none is taken out of a document as it is.

    :param keys: of the task instance, one for each namespace that its jobs may have.
    :raises NotShownError: a document is too large, broken or of another task, or can't be read.
    """
    published = _published(place, keys)
    commit, manifest, reports = None, None, []
    if published is not None:
        commit, manifest = published
        reports.append(_report_of_dataset(place, commit, manifest))
    reports += [_report_without_dataset(place, key) for key in keys]
    known = [report for report in reports if report is not None]
    return TaskOutput(manifest, commit, max(known, key=_made_at, default=None))


def _published(place: Destination, keys: Collection[TaskKey]) -> tuple[str, Manifest] | None:
    """The newest dataset that the task instance itself has published, and its commit."""
    for entry in _newest_first(place):
        # A claim carries on what another task has published.
        if entry.kind != "commit" or entry.owner not in keys or entry.published is None:
            continue
        path = entry.published.manifest
        commit = commit_of(path)
        if commit is None or path != manifest_file(commit):
            raise _foreign("manifest")
        content = place.read(path, MANIFEST_BYTES)
        if content is None:
            raise NotShownError("The manifest of the task's dataset is gone from the destination.")
        manifest = manifest_in(content, path)
        named = manifest.content.owner, manifest.content.run_token
        if named != (entry.owner, entry.run_token):
            raise _foreign("manifest")
        return commit, manifest
    return None


def _newest_first(place: Destination) -> Iterator[JournalEntry]:
    names = [name for name in place.names(JOURNAL, MOST_ENTRIES) if _ENTRY.fullmatch(name)]
    paths = [f"{JOURNAL}/{name}" for name in sorted(names, reverse=True)[:MOST_READ]]
    contents = in_order(lambda path: place.read(path, ENTRY_BYTES), paths, _AT_ONCE)
    for path, content in zip(paths, contents, strict=True):
        if content is not None:
            yield parsed(parse_entry, content, path)


def _report_of_dataset(place: Destination, commit: str, manifest: Manifest) -> Report | None:
    report = _report(place, f"{report_folder(commit)}/{REPORT_DATA}")
    of_manifest = manifest.content.owner, manifest.content.submission_id
    if report is not None and (report.task, report.submission_id) != of_manifest:
        raise _foreign("report")
    return report


def _report_without_dataset(place: Destination, key: TaskKey) -> Report | None:
    report = _report(place, f"{task_place(key)}/{REPORT_DATA}")
    if report is not None and report.task != key:
        raise _foreign("report")
    return report


def _report(place: Destination, path: str) -> Report | None:
    content = place.read(path, REPORT_BYTES)
    return None if content is None else report_in(content, path)


def _made_at(report: Report) -> datetime.datetime:
    try:
        made = datetime.datetime.fromisoformat(report.created_at)
    except ValueError:
        return _NEVER
    return made if made.tzinfo else made.replace(tzinfo=datetime.UTC)


def _foreign(what: str) -> NotShownError:
    return NotShownError(
        f"There is no report here: the {what} in the destination does not name this task and this run."
    )
