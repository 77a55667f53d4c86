# SPDX-License-Identifier: Apache-2.0
"""All arguments of a batch inference side by side, and what follows from several, such as its fingerprint."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationInfo, field_validator

from airflow_provider_raybatch.contract.arguments.data import (
    OUTPUT_COLUMNS,
    InputArguments,
    OutputArguments,
    ReportArguments,
    ReuseArguments,
)
from airflow_provider_raybatch.contract.arguments.engine import EngineArguments, ModelArguments
from airflow_provider_raybatch.contract.arguments.images import ImageArguments, ImageLimits
from airflow_provider_raybatch.contract.arguments.limits import CostArguments, LimitArguments
from airflow_provider_raybatch.contract.arguments.openai_batch import OpenAiBatchArguments, ServedArguments
from airflow_provider_raybatch.contract.arguments.prompt import PromptArguments
from airflow_provider_raybatch.contract.arguments.response_schema import properties_of
from airflow_provider_raybatch.contract.arguments.sampling import LOGPROBS, SamplingArguments, kept_logprobs
from airflow_provider_raybatch.contract.arguments.steps import StepsArguments
from airflow_provider_raybatch.contract.arguments.task import ChunkArguments, TaskArguments
from airflow_provider_raybatch.contract.arguments.tools import TOOL_CALLS_COLUMN, ToolArguments
from airflow_provider_raybatch.contract.base import refuse_boolean
from airflow_provider_raybatch.contract.step_specs import adapters_of
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.contract.together import ArgumentsTogether

VLLM_PROCESSOR = "vLLMEngineProcessorConfig"


class SpecArguments(
    # Pydantic takes the fields of the last base first: read upwards, they are in the order of the docs.
    ServedArguments,
    ReportArguments,
    CostArguments,
    LimitArguments,
    ReuseArguments,
    OutputArguments,
    EngineArguments,
    SamplingArguments,
    ToolArguments,
    ChunkArguments,
    TaskArguments,
    OpenAiBatchArguments,
    ModelArguments,
    ImageLimits,
    ImageArguments,
    StepsArguments,
    PromptArguments,
    InputArguments,
    ArgumentsTogether,
):
    """The arguments of a batch inference, each as its own group checks it."""

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_no_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        return refuse_boolean(cls, info.field_name or "", value)

    @property
    def functions(self) -> dict[str, str]:
        """The user's functions and classes that travel with the job, by the argument that names each."""
        named = {
            "prompt_function": self.prompt_function,
            "postprocess": self.postprocess,
            "response_format": self.response_model,
        }
        return {argument: path for argument, path in named.items() if path is not None}

    def column_arguments(self) -> dict[str, str]:
        """See :meth:`PromptArguments.column_arguments`; with the columns of images."""
        return {**dict.fromkeys(self.images, "images"), **super().column_arguments()}

    @property
    def handles_blank(self) -> bool:
        """Whether blank rows are not asked; a step about completions asks about each that is there."""
        return self.on_blank != "ask" and self.question.step.each is None

    @property
    def adapter_locations(self) -> dict[str, str]:
        """See :attr:`ModelArguments.adapter_locations`; with those of all steps."""
        own = super().adapter_locations
        return {**self.adapters, **adapters_of(self.steps, self.adapter)} if self.steps else own

    @property
    def columns_of_source(self) -> dict[str, str]:
        """Columns that only the source can have, each with the argument that names it."""
        named = {self.sampling_column: "sampling_column", self.adapter_column: "adapter_column"}
        chosen = {column: argument for column, argument in named.items() if column is not None}
        return {**chosen, **dict.fromkeys(self.images, "images")}

    @property
    def rows_decide(self) -> bool:
        """Whether rows may have sampling parameters of their own."""
        return self.samples_by_row or self.prompt_function is not None

    @property
    def asks_several(self) -> bool:
        """Whether the job's own sampling gives a row more than one completion, or an earlier step has."""
        return int(self.sampling.get("n", 1)) > 1 or self.question.step.each is not None

    @property
    def step_columns(self) -> list[str]:
        """Names of the columns that a step makes, which later ones may read."""
        own = [*OUTPUT_COLUMNS[: -1 if self.asks_several else -2], *self.optional_columns]
        typed = properties_of(self.response_schema) if self.response_schema is not None else {}
        return [self.output_prefix + name for name in (*own, *typed)]

    @property
    def made_columns(self) -> set[str]:
        """Names of the columns that a dataset may have of its own, in lower case."""
        typed = properties_of(self.response_schema) if self.response_schema is not None else {}
        return {*self.own_columns(self.optional_columns), *((self.output_prefix + n).lower() for n in typed)}

    @property
    def optional_columns(self) -> list[str]:
        """Columns that only some jobs of text generation have, this one among them, before `output_prefix`.

        What decides about one must be part of the request keys, so that no stored response lacks it.
        """
        names = ["truncated_prompt_tokens"] if self.on_overlong == "truncate" else []
        names += self.question.optional_columns(self.asks_several)
        names += ["reasoning", "reasoning_tokens"] if self.splits_reasoning else []
        for name in kept_logprobs(self.sampling, self.lines_sample):
            names += LOGPROBS[name]
        return [*names, TOOL_CALLS_COLUMN] if self.calls_tools else names

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables for the chat template."""
        return self.chat_template_kwargs | ({} if self.tools is None else {"tools": self.tools})

    @property
    def image_columns(self) -> list[str]:
        """Columns of images that requests of the job show: its own, or those of all steps."""
        steps = self.steps or self.question.steps
        return list(dict.fromkeys([*self.images, *(name for step in steps for name in step.images)]))

    @property
    def may_have_images(self) -> bool:
        """Whether requests may have images: by a column of them, or in a chat that is not a text alone."""
        chats = self.messages_column or self.prompt_function or self.asks_by_lines
        return bool(self.image_columns or chats) and not self.pools and self.engine != "ray_data_llm"

    @property
    def swaps_adapters(self) -> bool:
        """Whether an engine holds fewer adapters at once than the job has."""
        adapters = len(self.adapter_locations)
        at_once = self.engine_args.get("max_loras", adapters)
        return isinstance(at_once, int) and at_once < adapters

    @property
    def has_vllm_sampling(self) -> bool:
        """Whether vLLM, or what stands for it, takes the sampling, and not SGLang or a server."""
        return bool(self.processor.get("config", VLLM_PROCESSOR) == VLLM_PROCESSOR)

    @property
    def asks_server(self) -> bool:
        """Whether a processor of Ray's asks a server, which tokenises the prompts."""
        return not str(self.processor.get("config", VLLM_PROCESSOR)).endswith("EngineProcessorConfig")

    @property
    def context_decides(self) -> bool:
        """Whether the context length decides responses: they fill it, or prompts are cut to it."""
        is_bounded = self.pools or self.sampling.get("max_tokens") is not None
        return not is_bounded or self.on_overlong != "error"


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
        deciding = {"images"}.union(*[group.model_fields for group in groups])
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
    "request_log",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
})
