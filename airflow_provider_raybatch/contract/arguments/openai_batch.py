# SPDX-License-Identifier: Apache-2.0
"""OpenAI batch files: what both sides know of a line, which arguments go with them, and a served batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from airflow_provider_raybatch.contract.base import ContractModel, SpecPart
from airflow_provider_raybatch.contract.location import FolderLocation

OPENAI_BATCH = "openai_batch"
"""The format, of a source and of a dataset."""
CUSTOM_ID = "custom_id"
LINE_COLUMNS = (CUSTOM_ID, "method", "url", "body")
"""Columns of such a source; `body` is JSON text."""
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDPOINTS = {"generate": (CHAT, COMPLETIONS), "embed": (EMBEDDINGS,)}
"""What lines may ask, by `model_task`."""


class OpenAiBatchArguments(SpecPart):
    """How lines of an OpenAI batch file are read, and answered.

    :param served_model_name: what lines have as `model`; ``None`` for the model's own name.
    """

    served_model_name: str | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _ids_name_lines(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("format") == OPENAI_BATCH and data.get("id_column") is None:
            return {**data, "id_column": CUSTOM_ID}
        return data

    @property
    def asks_by_lines(self) -> bool:
        """Whether each row is a line of an OpenAI batch file, whose body is the whole request."""
        return bool(getattr(self, "format", None) == OPENAI_BATCH)

    @property
    def lines_sample(self) -> bool:
        """Whether the lines have parameters of text generation, log probabilities among them."""
        given: Any = self
        return self.asks_by_lines and not given.pools

    @property
    def samples_by_row(self) -> bool:
        """Whether rows bring sampling parameters of their own, as data."""
        return self.asks_by_lines or getattr(self, "sampling_column", None) is not None

    @property
    def answers_lines(self) -> bool:
        """Whether the dataset is OpenAI's output and error files, so that failed rows are answers, too."""
        return bool(getattr(self, "destination_format", None) == OPENAI_BATCH)


class ServedBatch(ContractModel):
    """The batch that a job answers.

    :param folder: with the documents of the batch; its dataset lies below it.
    :param expires_at: epoch seconds after which the rows that are left get no answer.
    """

    folder: FolderLocation
    expires_at: float


class ServedArguments(SpecPart):
    """What a job knows of the batch that it answers.

    :param served_batch: its lines without an answer become error lines when the batch expires or is
        cancelled; ``None`` for a job that answers all rows or none.
    """

    served_batch: ServedBatch | None = Field(default=None)


Decision = Literal["completed", "failed", "expired", "cancelled", "limit_reached"]
"""How a batch ends."""


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
