# SPDX-License-Identifier: Apache-2.0
"""Delete files that no reader can reach: of unpublished commits, and scratch files.

A driver that dies or is superseded while publishing leaves a folder `data/<commit>/` that no manifest names.
Published commits stay, also older ones, because readers may use them. The parts of the ledger stay, too.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Sequence

from airflow_provider_raybatch.contract.layout import (
    MANIFESTS,
    OF_COMMITS,
    commit_of,
)
from airflow_provider_raybatch.contract.submission import JournalEntry
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.folder import Folder

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
