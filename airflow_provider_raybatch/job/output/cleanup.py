# SPDX-License-Identifier: Apache-2.0
"""Delete files that no reader can reach: of unpublished commits, scratch files, and copies of sources.

A driver that dies or is superseded while publishing leaves a folder `data/<commit>/` that no manifest names.
Published commits stay, also older ones, because readers may use them. The parts of the ledger stay, too.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Sequence

from airflow_provider_raybatch.contract.journal import JournalEntry
from airflow_provider_raybatch.contract.layout import (
    MANIFESTS,
    OF_COMMITS,
    SOURCES,
    commit_of,
    run_name,
    source_copy,
)
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.folder import Folder

SCRATCH_AGE = 3600.0
"""Seconds without a write after which a scratch file's writer must be dead: a write takes seconds."""
_UNCLAIMED_AGE = datetime.timedelta(days=7)
"""After that, a run with a copy and without a claim must be dead."""


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
        copies = collect_copies(folder, journal)
    except Exception as error:  # the dataset is published
        logging.getLogger(__name__).warning("left-overs are not collected this time: %s", error)
        return 0
    return len(dead) + len(scratch) + copies


def collect_copies(folder: Folder, journal: Journal) -> int:
    """Delete the copies of sources that are read no more; call it for a published dataset.

    :returns: how many; 0 unless the last entry is a commit. A failure is only logged.
    """
    try:
        # Listed before the journal is read, as above.
        files = [entry.path for entry in folder.list(SOURCES)]
        ended = unread(
            files, journal.history() if files else [], datetime.datetime.now(datetime.timezone.utc)
        )
        folder.delete([*ended, *sorted({path.rpartition("/")[0] for path in ended})])
    except Exception as error:  # the dataset is published
        logging.getLogger(__name__).warning("copies of sources are not deleted this time: %s", error)
        return 0
    return len(ended)


def unread(files: Iterable[str], history: Sequence[JournalEntry], now: datetime.datetime) -> list[str]:
    """Which of `files` are copies of sources whose run has ended.

    A run that has not claimed yet may still read its copies while another one commits.

    :param history: see :func:`unpublished`.
    """
    if not (history and history[-1].kind == "commit"):
        return []
    claimed = {run_name(entry.owner, entry.run_token) for entry in history}
    oldest = f"{now - _UNCLAIMED_AGE:%Y%m%dT%H%M%S}"
    return [
        path
        for path in files
        if (copy := source_copy(path)) is not None and (copy.run in claimed or copy.began < oldest)
    ]


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
