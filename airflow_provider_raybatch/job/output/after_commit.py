# SPDX-License-Identifier: Apache-2.0
"""What follows a commit: copies under fixed names, and the deletion of files that no reader can reach.

``manifest.json`` is a copy of the newest manifest under a fixed name, for people and simple tools.

The journal decides; the copy never goes back, even if a writer was frozen on the way.

A driver that dies or is superseded while publishing leaves a folder `data/<commit>/` that no manifest names.
Published commits stay, also older ones, because readers may use them. The parts of the ledger stay, too.
"""

from __future__ import annotations

import datetime
import json
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from airflow_provider_raybatch.contract.layout import (
    MANIFESTS,
    NEWEST_MANIFEST,
    OF_COMMITS,
    REPORT_DATA,
    REPORT_PAGE,
    REPORTS,
    commit_of,
    report_folder,
)
from airflow_provider_raybatch.contract.manifest import JournalEntry
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.errors import StorageError, TakenError, error_prefix
from airflow_provider_raybatch.storage.folder import Folder

_RACES = 20
_MARK = b"default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # in page.jinja
_BEGINNING = 1024
"""Bytes of a page within which its mark stands."""
logger = logging.getLogger(__name__)
_LONGEST_PAUSE = 0.1


def renew_copy(folder: Folder, journal: Journal) -> None:
    """Make the copy equal the manifest that the journal's last entry names."""
    _renew(folder, journal, NEWEST_MANIFEST, lambda manifest: manifest)


def renew_report_copies(folder: Folder, journal: Journal) -> None:
    """Make the copies of a report equal that of the newest dataset, if that has one. Never raises."""
    for name in (REPORT_DATA, REPORT_PAGE):
        try:
            _renew(folder, journal, name, partial(_of_report, name=name), _OURS[name])
        except Exception as error:  # the dataset is published
            logger.warning("%s/%s is not renewed this time: %s", folder.uri, name, error)


def _is_page(content: bytes) -> bool:
    return _MARK in content[:_BEGINNING]


def _is_data(content: bytes) -> bool:
    try:
        report = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(report, dict) and "schema_version" in report


_OURS = {REPORT_DATA: _is_data, REPORT_PAGE: _is_page}


def _of_report(manifest: str, name: str) -> str:
    return f"{report_folder(str(commit_of(manifest)))}/{name}"


def _renew(
    folder: Folder,
    journal: Journal,
    copy: str,
    original: Callable[[str], str],
    is_ours: Callable[[bytes], bool] = lambda content: True,
) -> None:
    """Make a copy equal its original.

    :param original: its path, by that of the manifest.
    :param is_ours: whether a file is such a copy, and not the user's own.
    """
    for _ in range(_RACES):
        with error_prefix("destination"):
            # Read before the journal is: if a newer manifest is copied after this, the replacement fails.
            old = None if folder.head(copy) is None else folder.read(copy)
            last = journal.last()
            if last is None or last.published is None:
                return
            if old is not None and not is_ours(old):
                raise StorageError(f"it is not a report, so it stays; see {REPORTS}/ beside it.")
            path = original(last.published.manifest)
            if copy != NEWEST_MANIFEST and folder.head(path) is None:
                folder.delete([copy])  # it is about an older dataset
                return
            new = folder.read(path)
            if old == new:
                folder.sync()
                return
            try:
                folder.replace(copy, old, new)
            except TakenError:
                time.sleep(random.uniform(0, _LONGEST_PAUSE))
            else:
                return
    raise StorageError(f"destination: {folder.uri}/{copy} is being changed by many jobs at once.")


SCRATCH_AGE = 3600.0
"""Seconds without a write after which a scratch file's writer must be dead: a write takes seconds."""


def collect(folder: Folder, journal: Journal) -> int:
    """Delete the left-overs in a destination; call it after the commit.

    :param journal: of the submission that has just committed.
    :returns: how many files were deleted. A failure is only logged.
    """
    try:
        # Listed before the journal is read: the writers of these files had claimed by then. If the last entry
        # is still this job's commit, their claims are older, and their commits can only fail.
        files = [entry.path for kind in OF_COMMITS for entry in folder.list(kind)]
        journal.check()
        dead = unpublished(files, journal.history())
        scratch = folder.abandoned(SCRATCH_AGE)
        own_folders = {path.rpartition("/")[0] for path in dead if not path.startswith(f"{MANIFESTS}/")}
        folder.delete([*dead, *sorted(own_folders)])
        folder.delete(scratch)
    except Exception as error:  # the dataset is published
        logging.getLogger(__name__).warning("left-overs are not collected this time: %s", error)
        return 0
    return len(dead) + len(scratch)


def unpublished(files: Iterable[str], history: Sequence[JournalEntry]) -> list[str]:
    """Which of `files` belong to commits that were not and will not be published.

    In doubt a file stays: if another submission has claimed, if entries are missing, or if the file is older
    than the first entry (the journal may have been deleted). Other names are the user's files.

    :param files: paths relative to the destination.
    :param history: the whole journal, oldest entry first, read after `files` were listed.
    """
    if not history or history[-1].kind != "commit":
        return []
    if [entry.number for entry in history] != list(range(1, len(history) + 1)):
        return []
    published = {commit_of(entry.published.manifest) for entry in history if entry.published}
    began = f"{datetime.datetime.fromisoformat(history[0].at):%Y%m%dT%H%M%S}"
    return [
        path
        for path in files
        if (name := commit_of(path)) is not None and name not in published and name >= began
    ]
