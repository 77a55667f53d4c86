# SPDX-License-Identifier: Apache-2.0
"""What a response depends on, and what a dataset depends on: the arguments by which both are known again."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.contract.arguments.cost import CostArguments
from airflow_provider_raybatch.contract.arguments.images import ImageArguments, ImageLimits
from airflow_provider_raybatch.contract.arguments.limits import Limits
from airflow_provider_raybatch.contract.arguments.model import ModelArguments
from airflow_provider_raybatch.contract.arguments.prompt import PromptArguments
from airflow_provider_raybatch.contract.arguments.report import ReportArguments
from airflow_provider_raybatch.contract.arguments.sampling import SamplingArguments
from airflow_provider_raybatch.contract.arguments.served import ServedArguments
from airflow_provider_raybatch.contract.arguments.sizing import LORA_SIZES, SIZING_ARGS
from airflow_provider_raybatch.contract.arguments.task import GENERATE
from airflow_provider_raybatch.contract.arguments.tools import ToolArguments
from airflow_provider_raybatch.contract.digest import json_digest
from airflow_provider_raybatch.contract.spec_arguments import SpecArguments

_OF_TOOLS = tuple(ToolArguments.model_fields)
_LATER_CHOICES = ("special_tokens_in_text", "on_overlong", *_OF_TOOLS)
_YOUNG = (
    "csv_options", "response_format_digest", "pooling", "embed_dtype", "adapter", "adapters",
    "adapter_column", "adapter_digests", "query", "document", "documents_column", "top_n",
    "chunk_tokens", "chunk_overlap_tokens", "served_model_name", "steps", "asked_step",
    "num_gpus", "on_blank",
    *ImageArguments.model_fields,
    *_LATER_CHOICES,
)  # fmt: skip
"""Arguments that came after specs were submitted: left out of the fingerprint where they are not given."""
_NOT_DELIVERED = (Limits, ImageLimits, CostArguments, ReportArguments, ServedArguments)


class Identity(SpecArguments):
    """A batch inference as parts, request keys and the response store know it."""

    @property
    def later_choices(self) -> dict[str, Any]:
        """Arguments that request keys are older than, unless they are at their defaults."""
        return {name: getattr(self, name) for name in _LATER_CHOICES if name not in self._unset}

    @property
    def _unset(self) -> set[str]:
        fields = type(self).model_fields
        default = {name: fields[name].get_default(call_default_factory=True) for name in _YOUNG}
        return {name for name in _YOUNG if getattr(self, name) == default[name]}

    @property
    def fingerprint(self) -> str:
        """32 hex digits over everything that changes what is generated or delivered, and nothing else."""
        left_out = {"submission", "template_time", "adapter_digests", *self._unset}
        left_out |= {name for group in _NOT_DELIVERED for name in group.model_fields}
        return json_digest(self.model_dump(mode="json", exclude=left_out))

    @property
    def response_digest(self) -> str:
        """32 hex digits over what decides a response: prompt, model, sampling and the engine's numerics.

        Sizes, replicas and the destination's format are left out, so a job that is resumed on another
        cluster, or with another plan, keeps the rows it has.
        """
        return json_digest(self.deciding)

    @property
    def deciding(self) -> dict[str, Any]:
        """What :attr:`response_digest` is over, by the arguments' names; `engine` with its own arguments."""
        groups = (PromptArguments, ModelArguments, ToolArguments, SamplingArguments)
        deciding = {"images", *(name for group in groups for name in group.model_fields)}
        left_out = {"template_time", "adapter_digests", "response_format_digest", "on_blank", *self._unset}
        content = self.model_dump(mode="json", include=deciding - left_out)
        if self.response_schema is not None:
            content["response_format"] = "text"  # `sampling` has the schema, as users may write it there
        content["engine"] = [self.engine, self.numerics, self.processor_numerics]
        if self.splits_reasoning:
            content["reasoning"] = 2
        return {**content, **self.pooled}

    @property
    def pooled(self) -> dict[str, Any]:
        """What decides an answer of a pooling model besides its text and engine; empty for generated text."""
        if self.model_task == GENERATE:
            return {}
        return {"model_task": self.model_task, "pooling": self.pooling, **self.chunking}

    @property
    def numerics(self) -> dict[str, Any]:
        """The engine's arguments that may change a response, and not only sizes."""
        sizes = SIZING_ARGS | (set() if self.context_decides else {"max_model_len"})
        sizes |= LORA_SIZES if self.adapter_locations else set()
        return {name: value for name, value in self.engine_args.items() if name not in sizes}
