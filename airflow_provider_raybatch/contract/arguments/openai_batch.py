# SPDX-License-Identifier: Apache-2.0
"""OpenAI batch files: what both sides know of a line, which arguments go with them, and served batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from airflow_provider_raybatch.contract.arguments.prompt import PROMPTS
from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.location import FolderLocation

OPENAI_BATCH = "openai_batch"
"""The format, of a source and of a dataset."""
CUSTOM_ID = "custom_id"
LINE_COLUMNS = (CUSTOM_ID, "method", "url", "body")
"""Columns of such a source; `body` is JSON text."""
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDPOINTS = {"generate": (CHAT, COMPLETIONS), "embed": (EMBEDDINGS,)}
"""What lines may ask, by `model_task`."""

_OF_LINES = {
    **dict.fromkeys(PROMPTS, "the body of each line is what is asked"),
    "system_prompt": "the messages of each line are what is asked",
    "steps": "the body of each line is the one request",
    "sampling_column": "the body of each line has its parameters",
    "response_format": "the body of each line has its own",
    "adapter_column": "a line has the name of the model, and no adapter",
    "images": "the messages of each line have their images, as 'data:' URIs",
    **dict.fromkeys(("image_roots", "image_hosts"), "a line has its images in it, and no references"),
    "chunk_tokens": "a line gets one vector",
    "on_blank": "the body of each line is what is asked",
    "on_overlong": "a line that is too long gets an error line",
}
"""Arguments that a source of batch lines does not take, each with why."""


class OpenAiBatchArguments(ContractModel):
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

    @model_validator(mode="after")
    def _lines_decide(self) -> OpenAiBatchArguments:
        given: Any = self
        if not self.asks_by_lines:
            if self.served_model_name is not None:
                raise ValueError(
                    "served_model_name: it is the name of the model in lines of an OpenAI batch file; set "
                    "format='openai_batch', or remove it"
                )
            if self.answers_lines:
                raise ValueError(
                    "destination_format: 'openai_batch' answers lines of an OpenAI batch file; set "
                    "format='openai_batch', or choose 'parquet' or 'jsonl'"
                )
            return self
        fields = type(self).model_fields
        for name, why in _OF_LINES.items():
            default = fields[name].get_default(call_default_factory=True)
            if getattr(given, name) != default and not (name == "on_overlong" and given.pools):
                raise ValueError(f"{name}: it has no effect with format 'openai_batch': {why}; remove it")
        self._check_others(given)
        return self

    def _check_others(self, given: Any) -> None:
        if given.id_column != CUSTOM_ID:
            raise ValueError(
                f"id_column: lines of an OpenAI batch file are named by {CUSTOM_ID!r}; leave id_column out"
            )
        if given.model_task not in ENDPOINTS:
            raise ValueError(
                f"model_task: no endpoint of OpenAI's batches does {given.model_task!r}; it must be "
                f"{' or '.join(map(repr, ENDPOINTS))}"
            )
        if given.engine == "ray_data_llm":
            raise ValueError(
                "format: engine 'ray_data_llm' gives all rows the same parameters, and lines of "
                "'openai_batch' have their own; use engine 'vllm'"
            )
        if self.answers_lines and given.postprocess is not None:
            raise ValueError(
                "postprocess: it adds columns, which lines of destination_format 'openai_batch' have not; "
                "remove it, or choose destination_format 'parquet'"
            )

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


class ServedArguments(ContractModel):
    """What a job knows of the batch that it answers.

    :param served_batch: its lines without an answer become error lines when the batch expires or is
        cancelled; ``None`` for a job that answers all rows or none.
    """

    served_batch: ServedBatch | None = Field(default=None)
