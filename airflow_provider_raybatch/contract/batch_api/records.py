# SPDX-License-Identifier: Apache-2.0
"""What is kept of files and batches. Each document is written once, but for a batch's progress.

So a state never goes back, whichever process dies when. Times are epoch seconds.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel

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
