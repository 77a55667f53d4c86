# SPDX-License-Identifier: Apache-2.0
"""Every name on a disk, in a bucket and in a package of the cluster, each written once.

Paths are relative to their root: the destination, the folder of a response store, or a package. What begins
with ``_`` or ``.`` is bookkeeping, which readers of folders skip. The standard library alone, since the job
needs it before its path is complete.

Ray puts what it unpacks first on Python's path, where a shipped wheel would hide the cluster's own, which may
be the only one that fits its Python.
"""

from __future__ import annotations

import re
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_raybatch.contract.submission import Submission, TaskKey

# A destination: what readers see.

DATA = "data"
"""Of each commit a folder with its dataset."""
DEAD_LETTER = "dead_letter"
"""Its failed rows; of a job that published nothing, its driver's name stands for the commit."""
ERRORS = "errors"
"""Its failed rows again, as lines of OpenAI's error files, where the dataset is their output files."""
MANIFESTS = "manifests"
NEWEST_MANIFEST = "manifest.json"
"""A copy of the newest manifest under a fixed name."""
REPORTS = "reports"
"""Of each commit a folder with its report; copies of the newest lie beside the newest manifest."""
REPORT_PAGE, REPORT_DATA = "report.html", "report.json"
"""Names of a report's two files, in the folder of its commit or, without one, in :func:`task_folder`."""

# A destination: bookkeeping.

JOURNAL = "_raybatch/journal"
PROBES = "_raybatch/probes"
"""Files that a job creates and deletes, to see whether the store keeps conditions."""
PARTS = "_raybatch/parts"
POSTPROCESS = "_raybatch/postprocess"
"""Of each commit what the user's function returned, until the dataset is written."""
RECORD = "record.json"
"""In a driver's folder: what it notes of itself while it runs."""
REPEATS = "repeats.index"
"""In a driver's folder: which rows repeat sampled requests of others."""
ASKED = "asked.json"
"""In a run's folder: digests of what its requests depend on."""
DAMAGED = ".damaged"
"""Ends the name of the file that says that the part beside it can't be used, and why."""

OF_COMMITS = (DATA, DEAD_LETTER, ERRORS, POSTPROCESS, REPORTS, MANIFESTS)
"""The folders that hold files of commits."""
_COMMIT = r"(\d{8}T\d{6}-[0-9a-f]{8})"
_FOLDERS = "|".join((DATA, DEAD_LETTER, ERRORS, POSTPROCESS, REPORTS))
_OF_A_COMMIT = re.compile(rf"(?:(?:{_FOLDERS})/{_COMMIT}/.+|{MANIFESTS}/{_COMMIT}\.json)", re.DOTALL)

SCRATCH = ".raybatch-"
"""Begins the name of a file on a local disk that is being written."""

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""In the path of a partitioned file: the value null, as Hive writes it."""

# A response store.

STORE_INDEX = "v1/index"
STORE_DATA = "v1/data"
STORE_ASKED = "v1/asked"
"""Of each task what the requests of its last run depended on."""
STORE_MARK = "v1/store.json"
STORE_WHOLE = "_whole"
"""Name of the file that says that all of a submission's responses and their keys are in the store."""

# The root of the Batch API.

FILES = "files"
"""Of each file a folder, with its record and, of an upload, its content."""
BATCHES = "batches"
"""Of each batch a folder, with its documents and its dataset."""
USERS = "users"
"""Of each user a folder with keys of files and batches, newest first."""
CREATES = "creates"
"""Which batch was made for which request, so that a repeated one makes no second batch."""
SIGNED_RECORD = "record.json"
"""Of a file or a batch: who owns it, and what it is."""
CONTENT = "content.jsonl"
TRIGGERED, STARTED, OUTCOME, PROGRESS, ENDED = (
    "triggered.json", "started.json", "outcome.json", "progress.json", "ended.json",
)  # fmt: skip
"""Documents of a batch; all but the progress are written once."""
BATCH_DATASET = "dataset"
"""The destination of a batch's job, in the folder of the batch."""

# Packages that travel to the cluster.

SPEC_FILE = "spec.json"
REQUEST_FILE = "preview.json"
"""Beside the spec of a preview job: what it reports."""
KEY_FILE, SECRETS_FILE = "key", "secrets"
"""Members of the private package: the job's key, and the credentials as they were sealed."""

WHEELS_FOLDER = "raybatch_wheels"
"""Of distributions that travel with a job."""


def file_folder(file_id: str) -> str:
    """Where a file of the Batch API lies."""
    return f"{FILES}/{file_id}"


def batch_folder(batch_id: str) -> str:
    """Where a batch lies."""
    return f"{BATCHES}/{batch_id}"


def user_index(owner: str, of: str) -> str:
    """The keys of a user's files or batches.

    :param owner: the digest of the user's id.
    :param of: :data:`FILES` or :data:`BATCHES`.
    """
    return f"{USERS}/{owner}/{of}"


def create_log(digest: str) -> str:
    """The log of the requests that ask for the same batch."""
    return f"{CREATES}/{digest}"


def create_entry(digest: str, number: int) -> str:
    """An entry of it; their names have the order of their numbers."""
    return f"{create_log(digest)}/{number:08d}.json"


def manifest_file(commit: str) -> str:
    """Its manifest."""
    return f"{MANIFESTS}/{commit}.json"


def report_folder(commit: str) -> str:
    """Where the report of a commit lies."""
    return f"{REPORTS}/{commit}"


def data_file(folder: str, number: int, extension: str) -> str:
    """A file of a dataset or of dead letters."""
    return f"{folder}/part-{number:05d}.{extension}"


def commit_of(path: str) -> str | None:
    """The commit that a file belongs to, ``None`` where its name is none that a commit makes."""
    found = _OF_A_COMMIT.fullmatch(path)
    return (found.group(1) or found.group(2)) if found else None


def journal_entry(number: int) -> str:
    """An entry of the journal; their names have the order of their numbers."""
    return f"{JOURNAL}/{number:08d}.json"


def task_folder(submission: Submission) -> str:
    """Where a task keeps all its parts."""
    return task_place(submission.task)


def task_place(task: TaskKey) -> str:
    """The same for a task, whichever of its jobs."""
    return f"{PARTS}/{task.digest[:16]}"


def run_folder(submission: Submission, question: str, listing_digest: str) -> str:
    """Where a task keeps the parts of one input and one `question`: what decides responses besides rows."""
    return f"{task_folder(submission)}/{question[:16]}-{listing_digest[:16]}"


def is_of_input(run: str, listing_digest: str) -> bool:
    """Whether a run's folder has the parts of this input."""
    return run.endswith(f"-{listing_digest[:16]}")


def driver_folder(run: str, submission_id: str) -> str:
    """Where one driver keeps its parts, below the run folder `run`, and no other driver.

    Submission ids begin anew after a head restart, whose old jobs may still be writing.
    """
    return f"{run}/{submission_id}~{uuid.uuid4().hex[:8]}"


def use_shipped_wheels() -> None:
    """Put the shipped distributions, if there are any, last on Python's path, once."""
    folders = [Path(entry) / WHEELS_FOLDER for entry in sys.path]
    sys.path.extend(str(folder) for folder in folders if folder.is_dir() and str(folder) not in sys.path)
