# SPDX-License-Identifier: Apache-2.0
"""What a response depends on, and what a dataset depends on: the arguments by which both are known again."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.contract.arguments.images import ImageLimits
from airflow_provider_raybatch.contract.arguments.limits import CostArguments, LimitArguments
from airflow_provider_raybatch.contract.arguments.model import ModelArguments
from airflow_provider_raybatch.contract.arguments.openai_batch import ServedArguments
from airflow_provider_raybatch.contract.arguments.output import ReportArguments
from airflow_provider_raybatch.contract.arguments.prompt import PromptArguments
from airflow_provider_raybatch.contract.arguments.sampling import SamplingArguments
from airflow_provider_raybatch.contract.arguments.tools import ToolArguments
from airflow_provider_raybatch.contract.digest import json_digest
from airflow_provider_raybatch.contract.spec_arguments import SpecArguments

_NOT_DELIVERED = (LimitArguments, ImageLimits, CostArguments, ReportArguments, ServedArguments)


class Identity(SpecArguments):
    """A batch inference as parts, request keys and the response store know it."""

    @property
    def fingerprint(self) -> str:
        """32 hex digits over everything that changes what is generated or delivered, and nothing else."""
        left_out = {"submission", "template_time", "adapter_digests"}
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
        left_out = {"template_time", "adapter_digests", "response_format_digest", "on_blank"}
        content = self.model_dump(mode="json", include=deciding - left_out)
        if self.response_schema is not None:
            content["response_format"] = "text"  # `sampling` has the schema, as users may write it there
        content["engine"] = [self.engine, self.numerics, self.processor_numerics]
        return {**content, **self.kind_of_answer}

    @property
    def kind_of_answer(self) -> dict[str, Any]:
        """The kind of task, and what decides an answer of a pooling model besides its text and engine."""
        chunks = [self.chunk_tokens, self.chunk_overlap_tokens]
        return {"model_task": self.model_task, "pooling": self.pooling, "chunks": chunks}

    @property
    def numerics(self) -> dict[str, Any]:
        """The engine's arguments that may change a response, and not only sizes."""
        sizes = SIZING_ARGS | (set() if self.context_decides else {"max_model_len"})
        return {name: value for name, value in self.engine_args.items() if name not in sizes}


SIZING_ARGS = frozenset({
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enforce_eager",
    "disable_log_stats",
    "enable_log_requests",
    "kv_cache_memory_bytes",
    "distributed_executor_backend",
    "block_size",
    "swap_space",
    "cpu_offload_gb",
    "seconds_per_token",
    "startup_seconds",
    "startup_spread",
    "kill_pattern",
    "hang_pattern",
    "fail_pattern",
    "endless_reasoning_pattern",
    "request_log",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
})
