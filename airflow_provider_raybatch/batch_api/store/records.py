# SPDX-License-Identifier: Apache-2.0
"""What is kept of files and batches, and the state of a batch: a function of the documents that are there.

Each document is written once, but for a batch's progress. So a state never goes back, whichever process dies
when. Records are signed: who may write to the bucket, or trigger a DAG, can't make one up. Times are epoch
seconds. What the job reads, too, is in the contract.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import Field

from airflow_provider_raybatch.contract.arguments.openai_batch import (
    BatchError,
    BatchOutcome,
    BatchProgress,
    Decision,
    RequestCounts,
)
from airflow_provider_raybatch.contract.base import ContractModel, parse
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError

Record = TypeVar("Record", bound=ContractModel)

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


class ForgedRecordError(RaybatchError):
    """A document is not one that this Airflow has signed."""


def signed(record: ContractModel, kind: str, secret: bytes) -> bytes:
    """The document of a record.

    :param kind: what it is, with the id of what it belongs to, so that no record stands for another.
    :param secret: of this Airflow.
    """
    text = record.model_dump_json()
    return json.dumps({"record": text, "signature": _signature(text, kind, secret)}).encode()


def opened(content: bytes, model: type[Record], kind: str, secret: bytes) -> Record:
    """The record of a document.

    :param kind: as it was signed.
    :raises ForgedRecordError: it was signed with another secret, as another kind, or not at all.
    """
    try:
        document = json.loads(content)
        text, given = document["record"], document["signature"]
        if hmac.compare_digest(_signature(text, kind, secret).encode(), given.encode()):
            return parse(model, text)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ForgedRecordError(
        f"{kind}: its record is not signed with this Airflow's [raybatch] batch_api_secret; set the same "
        "secret on API servers and workers, or create the batch again.",
        FailureClass.USER_ERROR,
    )


def _signature(text: str, kind: str, secret: bytes) -> str:
    return hmac.new(secret, f"{kind}\n{text}".encode(), hashlib.sha256).hexdigest()
