# SPDX-License-Identifier: Apache-2.0
"""What is kept of files and batches, and their names. Each document is written once, but for a progress.

So the state of a batch, which follows from its documents, never goes back, whichever process dies when. Times
are epoch seconds.

Names of clients are checked before they become part of a path. Keys in the index of a user hold what
listings, limits and expiry need to know, so none of them reads the records of what it doesn't show.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.text import hex_digest

Decision = Literal["completed", "failed", "expired", "cancelled", "limit_reached"]
EarlyEnd = Literal["expired", "cancelled", "limit_reached"]
"""How a batch ends in which not each line has an answer; also the step of such a line's row."""


class StoredPiece(ContractModel):
    """A part of a file's content: an object below the root, and its bytes."""

    path: str
    bytes: int = Field(ge=0)


class FileRecord(ContractModel):
    """A file of a user. Signed.

    :param owner: user id, as Airflow's auth manager has it.
    :param bytes: of the whole content.
    :param lines: of an upload.
    :param sha256: of an upload's content, in hex.
    :param expires_at: when it is deleted, and before that answered with 404.
    :param content: the pieces that make it up, in order.
    :param batch_id: the batch that made it; ``None`` for an upload.
    """

    id: str
    owner: str
    filename: str
    purpose: Literal["batch", "batch_output"]
    bytes: int = Field(ge=0)
    created_at: float
    expires_at: float
    content: list[StoredPiece]
    lines: int = 0
    sha256: str = ""
    batch_id: str | None = None


class BatchRecord(ContractModel):
    """What a client has asked for. Signed, since whoever may trigger the DAG can name any batch.

    :param owner: user id, as Airflow's auth manager has it.
    :param dag_id: the DAG whose run of the same id as the batch answers it.
    :param model: the name that clients use.
    :param input: of the input file, which may be deleted meanwhile.
    :param window: as given, and `expires_at` the end of it.
    :param outputs_expire_after: seconds after which the output and error files are deleted.
    :param strict: whether the server that took it holds it to OpenAI's limits.
    """

    id: str
    owner: str
    dag_id: str
    model: str
    endpoint: str
    input_file_id: str
    input: list[StoredPiece]
    input_lines: int = 0
    window: str = "24h"
    created_at: float
    expires_at: float
    outputs_expire_after: float
    strict: bool = False
    metadata: dict[str, str] | None = None


class Triggered(ContractModel):
    """Airflow has the batch's DAG run."""

    at: float
    nonce: str


class Started(ContractModel):
    """The input is valid, and the batch's task goes on to ask the model.

    :param total: requests of the input.
    """

    at: float
    total: int
    nonce: str


class BatchError(ContractModel):
    """Why a batch failed, as clients see it.

    :param line: of the input, from 1.
    """

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchOutcome(ContractModel):
    """How a batch ends, before it has ended. Whoever writes it first has decided.

    :param decision: ``cancelled`` by the server; ``completed`` by the job when each line has an answer,
        ``expired`` when the window has passed, and ``limit_reached`` when it has used up a limit of its
        model; ``failed`` by the task, or by the server where its DAG run is over without a result.
    :param errors: of a batch that failed or reached a limit.
    """

    decision: Decision
    at: float
    nonce: str
    errors: list[BatchError] = Field(default_factory=list)


class RequestCounts(ContractModel):
    """Requests of a batch; the other two never add up to more than `total`."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchProgress(ContractModel):
    """How far the job is, in rows that are written; renewed by the driver."""

    at: float
    counts: RequestCounts


class Usage(ContractModel):
    """Tokens of the good answers."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class BatchEnd(ContractModel):
    """The end of a batch. Signed, and final.

    :param decision: as of its outcome, and `decided_at` the time of that.
    :param output_file_id: ``None`` where no request has a good answer; `error_file_id` where none failed.
    :param cost: what its GPUs cost, in `currency`; ``None`` where that is not known.
    """

    decision: Decision
    decided_at: float
    at: float
    nonce: str
    counts: RequestCounts = Field(default_factory=RequestCounts)
    usage: Usage = Field(default_factory=Usage)
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[BatchError] = Field(default_factory=list)
    cost: float | None = None
    currency: str | None = None


Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]

_BEFORE_THE_END: dict[Decision, Status] = {
    "completed": "finalizing",
    "expired": "finalizing",
    "cancelled": "cancelling",
    "limit_reached": "cancelling",
    "failed": "failed",
}
"""What a decided batch is until its files are there."""


@dataclass(frozen=True)
class BatchState:
    """A batch, as far as its documents tell.

    :param triggered: whether Airflow has its DAG run.
    :param progress: the last one that was written.
    """

    record: BatchRecord
    triggered: bool = False
    started: Started | None = None
    outcome: BatchOutcome | None = None
    progress: BatchProgress | None = None
    ended: BatchEnd | None = None

    @property
    def status(self) -> Status:
        """OpenAI's word for it."""
        if self.ended is not None:
            return "cancelled" if self.ended.decision == "limit_reached" else self.ended.decision
        if self.outcome is not None:
            return _BEFORE_THE_END[self.outcome.decision]
        return "validating" if self.started is None else "in_progress"

    @property
    def is_over(self) -> bool:
        """Whether nothing about it changes any more."""
        return self.ended is not None

    @property
    def counts(self) -> RequestCounts:
        """Of its requests, in the end or so far."""
        if self.ended is not None:
            return self.ended.counts
        if self.progress is not None:
            return self.progress.counts
        return RequestCounts(total=0 if self.started is None else self.started.total)


TASK_ID = "answer"
"""The task of a batch's DAG run."""
_FILE = re.compile(r"file-[0-9a-f]{32}")
_BATCH = re.compile(r"batch_[0-9a-f]{32}")
_FILE_KEY = re.compile(
    rf"(\d{{13}})-({_FILE.pattern})\.(\d{{1,12}})\.(\d{{1,18}})\.([a-z_]{{1,32}})", re.ASCII
)
_BATCH_KEY = re.compile(rf"(\d{{13}})-({_BATCH.pattern})", re.ASCII)
_LATEST = 10**13
"""Milliseconds, in the year 2286: keys count down from here, so that listings begin with the newest."""


def new_file_id() -> str:
    """A name that can't be guessed."""
    return f"file-{secrets.token_hex(16)}"


def new_batch_id() -> str:
    """A name that can't be guessed; its DAG run has it, too."""
    return f"batch_{secrets.token_hex(16)}"


def is_file_id(text: str) -> bool:
    """Whether a text may be the name of a file."""
    return _FILE.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    """Whether a text may be the name of a batch."""
    return _BATCH.fullmatch(text) is not None


def output_file_id(batch_id: str, kind: str) -> str:
    """The name of a file that a batch makes, so that whoever ends the batch gives it the same one.

    :param kind: ``output`` or ``error``.
    """
    return f"file-{hex_digest(f'{batch_id}/{kind}')}"


def newest_first(created_at: float, name: str) -> str:
    """A key of `name`; in the order of keys, later ones come first.

    :param created_at: epoch seconds.
    """
    return f"{_LATEST - int(created_at * 1000):013d}-{name}"


def owner_digest(owner: str) -> str:
    """A user's folder, whose name must not depend on what user names may hold."""
    return hex_digest(owner)


class ListedFile(NamedTuple):
    """A file, as its key tells.

    :param created_at: epoch seconds, as `expires_at`.
    :param bytes: of the whole content.
    """

    id: str
    created_at: float
    expires_at: int
    bytes: int
    purpose: str


class ListedBatch(NamedTuple):
    """A batch, as its key tells."""

    id: str
    created_at: float


def file_key(record: FileRecord) -> str:
    """The key of a file; in the order of keys, later files come first."""
    place = newest_first(record.created_at, record.id)
    return f"{place}.{int(record.expires_at)}.{record.bytes}.{record.purpose}"


@lru_cache(maxsize=2**17)  # some 60 MB where as many are listed; each call of their owner looks at all
def listed_file(key: str) -> ListedFile | None:
    """What a key tells; ``None`` where it is not a file's."""
    found = _FILE_KEY.fullmatch(key)
    return found and ListedFile(found[2], _created_at(found[1]), int(found[3]), int(found[4]), found[5])


def listed_batch(key: str) -> ListedBatch | None:
    """What a key tells; ``None`` where it is not a batch's."""
    found = _BATCH_KEY.fullmatch(key)
    return found and ListedBatch(found[2], _created_at(found[1]))


def _created_at(countdown: str) -> float:
    return (_LATEST - int(countdown)) / 1000
