# SPDX-License-Identifier: Apache-2.0
"""What the Airflow side writes and the job reads: one JSON document that says all about a batch inference."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_raybatch.contract.base import ContractModel, shown
from airflow_provider_raybatch.contract.column_names import check_column_name
from airflow_provider_raybatch.contract.location import (
    SOURCE_SCHEMES,
    check_absolute,
    check_location,
    check_model_folder,
    checked_folder,
    plain,
    reads_into,
)
from airflow_provider_raybatch.contract.prompt import (
    PromptSpec,
    ResponseFormat,
    check_placeholders,
    checked_import_path,
)

NOT_KEPT = frozenset({
    "logprobs", "prompt_logprobs", "flat_logprobs", "logprob_token_ids", "prompt_logprob_token_ids",
})  # fmt: skip
"""Sampling parameters whose results no column of the dataset holds."""

SourceFormat = Literal["parquet", "jsonl", "csv"]
OutputFormat = Literal["parquet", "jsonl"]

REUSED_COLUMN = "reused_from"
GENERATE = "generate"
_SIZING_ARGS = frozenset({
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
    "kill_pattern",
    "fail_pattern",
    "request_log",
})
_MODEL_FOLDERS = ("model", "tokenizer", "hf_config_path", "generation_config", "download_dir")
"""The model, and the engine arguments that may name a folder."""
_GPU_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
_MORE_ENGINES = frozenset({"data_parallel_size", "dp_size", "nnodes"})
"""Sizes that spread over more than the one replica that Ray reserves; SGLang's included."""
_VLLM_PROCESSOR = "vLLMEngineProcessorConfig"
_SIZING_FIELDS = frozenset({"batch_size", "concurrency", "headers", "max_concurrent_batches", "qps"})
"""Of Ray's processor configs; headers, since tokens in them change from night to night."""


class SourceSpec(ContractModel):
    """Where the rows come from.

    :param paths: files, folders or globs: local paths, ``file://``, ``s3://`` or ``https://`` (files only).
    :param format: by default the file extension tells.
    :param limit: only the first so many rows, to try things out.
    :param id_column: a column whose values name the rows, each once; by default a row's name is its position
        in the input.
    """

    paths: list[str] = Field(min_length=1)
    format: SourceFormat | None = None
    limit: int | None = Field(default=None, ge=1)
    id_column: str | None = Field(default=None, min_length=1)

    @field_validator("paths")
    @classmethod
    def _known_schemes(cls, paths: list[str]) -> list[str]:
        for path in paths:
            check_location(path, SOURCE_SCHEMES)
        return paths


class DestinationSpec(ContractModel):
    """Where the dataset goes.

    :param uri: a folder: local path, ``file://`` or ``s3://``.
    :param format: of the published parts.
    :param rows_per_part: about how many rows a published part has; by default parts are of about 128 MiB.
    :param on_owned_by_other: what to do when the folder holds the dataset of another task or run.
    :param output_prefix: put before the names of the output columns, to keep them apart from the input's.
    :param response_column: what the column with the response is called; by default ``response`` after
        `output_prefix`, which is not put before this name.
    """

    uri: str
    format: OutputFormat = "parquet"
    rows_per_part: int | None = Field(default=None, ge=1)
    on_owned_by_other: Literal["refuse", "take_over"] = "refuse"
    output_prefix: str = ""
    response_column: str | None = None

    @field_validator("uri")
    @classmethod
    def _known_scheme(cls, uri: str) -> str:
        return checked_folder(uri)

    @field_validator("response_column")
    @classmethod
    def _usable_name(cls, name: str | None) -> str | None:
        if name is not None:
            check_column_name(name)
        return name


class EngineSpec(ContractModel):
    """Which engine answers, and how many of it.

    :param kind: ``vllm`` (default), ``ray_data_llm`` (Ray's own processor) or ``echo`` (no model: a dry run).
    :param args: vLLM's engine arguments under vLLM's names (``tensor_parallel_size``, ``quantization``, ...);
        for ``echo``, the options of :class:`~airflow_provider_raybatch.job.engine.echo.EchoOptions`.
    :param replicas: engines side by side; by default as many as the cluster's GPUs hold, one on CPUs.
    :param accelerator_type: Ray's accelerator type a replica needs, such as ``H200``.
    :param num_cpus: CPUs that each replica reserves; by default 1, less where a GPU node has few.
    :param rows_in_flight: rows a replica works on at once; by default four times the engine's `max_num_seqs`.
    :param batch_size: rows that are read, rendered, tokenised and written together; by default derived.
    :param processor: only ``ray_data_llm``: further fields of Ray's ``vLLMEngineProcessorConfig`` or of the
        processor config named by ``processor["config"]``.
    :param max_restarts: how often in a row an engine may die without a single row finished in between, beyond
        what it takes to find the row that kills it.
    """

    kind: Literal["vllm", "ray_data_llm", "echo"] = "vllm"
    args: dict[str, Any] = Field(default_factory=dict)
    replicas: int | None = Field(default=None, ge=1)
    accelerator_type: str | None = None
    num_cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rows_in_flight: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    processor: dict[str, Any] = Field(default_factory=dict)
    max_restarts: int = Field(default=3, ge=0)

    @model_validator(mode="after")
    def _processor_only_for_ray(self) -> EngineSpec:
        if self.processor and self.kind != "ray_data_llm":
            raise ValueError(
                f"processor: only engine 'ray_data_llm' takes it, not {self.kind!r}; put vLLM's arguments "
                "into engine_args"
            )
        return self

    @field_validator("args")
    @classmethod
    def _whole_parallel_sizes(cls, args: dict[str, Any]) -> dict[str, Any]:
        for name in _GPU_SIZES:
            size = args.get(name, 1)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name}: it must be a whole number of at least 1, but it is {size!r}")
        for name, value in args.items():
            if name in _MORE_ENGINES or name.startswith("data_parallel_"):
                if value in (None, False) or (value == 1 and name in _MORE_ENGINES):
                    continue  # as without it
                raise ValueError(
                    f"{name}: {value!r} asks for GPUs that a replica does not reserve; leave it out, and set "
                    "replicas to the number of engines, or tensor_parallel_size and pipeline_parallel_size "
                    "to the GPUs of one"
                )
        return args

    @property
    def reasoning_parser(self) -> str:
        """Name of the parser by which vLLM tells reasoning from the answer; empty without one."""
        inside = self.args.get("structured_outputs_config")
        nested = inside.get("reasoning_parser") if isinstance(inside, dict) else None
        return str(self.args.get("reasoning_parser") or nested or "")

    @property
    def gpus_per_replica(self) -> int:
        """GPUs one replica spans: the product of vLLM's sizes that add GPUs to an engine."""
        return math.prod(int(self.args.get(name, 1)) for name in _GPU_SIZES)


class ModelSpec(ContractModel):
    """The model, as vLLM names it.

    :param name: Hugging Face id or a folder that the cluster's nodes can read.
    :param chat_template: a Jinja chat template that replaces the tokenizer's.
    :param chat_template_kwargs: passed to the chat template, for example ``{"enable_thinking": false}``.
    :param template_time: epoch seconds that a chat template prints which asks for the date; filled in by the
        job, so that all rows of a run have one date.
    """

    name: str = Field(min_length=1)
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    template_time: float | None = None

    @field_validator("chat_template")
    @classmethod
    def _text_of_a_template(cls, template: str | None) -> str | None:
        # A plain word may be the name of one of the tokenizer's own templates, such as "tool_use".
        named = template is None or template.isidentifier()
        if not named and "{{" not in str(template) and "{%" not in str(template):
            raise ValueError(
                f"{shown(template)} has no Jinja expression, so each row would ask the same; "
                "give the template's text, not the path of its file"
            )
        return template


class TaskKey(ContractModel):
    """Which Airflow task instance a job belongs to, whatever its try number.

    :param namespace: tells apart several Airflows that share a cluster.
    """

    namespace: str = "default"
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def digest(self) -> str:
        """32 hex digits, stable across machines and Python versions."""
        parts = [self.namespace, self.dag_id, self.run_id, self.task_id, self.map_index]
        return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:32]

    def __str__(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{mapped} of run {self.run_id}"


class Limits(ContractModel):
    """Bounds of a job.

    :param deadline: epoch seconds at which the job ends itself, ``None`` for no deadline.
    :param no_progress_timeout: seconds without a finished row, a generated token or a change of phase, after
        which the job fails with a diagnosis.
    :param cluster_wait: seconds to wait for nodes that are missing; by default 900 where an autoscaler may
        bring them, 300 where an earlier submission of the run had them, and else none.
    :param max_error_fraction: share of rows that may fail, 0 to 1, judged at the end and while the job runs;
        by default none may, or any share where `max_errors` is given.
    :param max_errors: how many rows may fail; where both are given, the stricter one counts.
    :param max_row_attempts: how often a row is asked that fails each time, over all submissions of the task.
    :param max_tokens_total: input and output tokens that the task may pay for, over all its submissions.
    :param max_gpu_hours: GPU hours that the replicas of one submission may hold; waiting for nodes costs
        none.
    :param flush_interval: seconds that a finished row waits at most for the slower rows of its chunk until it
        is written, so that it is not paid for again.
    :param orphan_timeout: seconds after which a job that no task follows writes what is finished and ends
        itself; 0 for never.
    """

    deadline: float | None = None
    no_progress_timeout: float = Field(default=1800.0, gt=0)
    cluster_wait: float | None = Field(default=None, ge=0)
    max_error_fraction: float | None = Field(default=None, ge=0.0, le=1.0)
    max_errors: int | None = Field(default=None, ge=0)
    max_row_attempts: int = Field(default=3, ge=1)
    max_tokens_total: int | None = Field(default=None, ge=1)
    max_gpu_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    flush_interval: float = Field(default=60.0, gt=0)
    orphan_timeout: float = Field(default=6 * 3600.0, ge=0)


class ReuseSpec(ContractModel):
    """A response store: rows that any run has paid for, found again by their request key.

    :param uri: a folder: local path, ``file://`` or ``s3://``; runs, backfills and DAGs may share it.
    :param max_age: seconds after which a stored response is no longer taken; by default it always is.
    """

    uri: str
    max_age: float | None = Field(default=None, gt=0)

    @field_validator("uri")
    @classmethod
    def _known_scheme(cls, uri: str) -> str:
        return checked_folder(uri)


class PostprocessSpec(ContractModel):
    """A user's function, ``module:name``, called with each row and its response on the cluster.

    It is called as ``function(row, response)`` when all responses are there, and returns a ``dict`` of
    columns for the dataset.

    :param source_digest: hash of the source that travels with the job, set at submission, so that changed
        code is a changed job.
    """

    function: str
    source_digest: str | None = None

    @field_validator("function")
    @classmethod
    def _import_path(cls, value: str) -> str:
        return checked_import_path(value)


class Submission(ContractModel):
    """Who runs this job: filled in at submission, no part of the fingerprint.

    :param run_token: names the task's current run and orders it among the task's runs; a retry keeps it, a
        clear renews it.
    :param submission_id: Ray's id of this job.
    :param secrets_package: name under which the cluster's package store holds the job's key, and credentials
        if any travel.
    """

    task: TaskKey
    run_token: str
    submission_id: str
    secrets_package: str | None = None


class BatchInferenceSpec(ContractModel):
    """A whole batch inference.

    :param model_task: what a row asks and yields: ``generate`` (text), the one kind that there is so far.
    :param sampling: vLLM sampling parameters under vLLM's names; merged over the model's `generation_config`.
    :param sampling_column: a column (struct or JSON object) with sampling parameters that override `sampling`
        per row.
    :param preserve_order: a promise that the rows are in input order; `ordered` in the manifest.
    :param response_format: what a response must be to count as good.
    :param postprocess: a function that adds columns to the dataset; part of the fingerprint, and neither of
        the response digest nor of the request keys, so that changing it pays for no response.
    :param reuse: a response store to take answers from and to add answers to; none by default.
    :param deduplicate: ask equal requests at temperature 0 once, and give every row that asks it the answer.
    :param on_clear: what a cleared task does with the rows that it has: ``keep`` those that still answer the
        same request, or ``regenerate`` all.
    :param submission: who runs it; ``None`` until submitted.
    """

    schema_version: Literal[1] = 1
    model_task: str = GENERATE
    source: SourceSpec
    prompt: PromptSpec
    model: ModelSpec
    sampling: dict[str, Any] = Field(default_factory=dict)
    sampling_column: str | None = None
    engine: EngineSpec = Field(default_factory=EngineSpec)
    destination: DestinationSpec
    limits: Limits = Field(default_factory=Limits)
    preserve_order: bool = False
    response_format: ResponseFormat = Field(default_factory=ResponseFormat)
    postprocess: PostprocessSpec | None = None
    reuse: ReuseSpec | None = None
    deduplicate: bool = True
    on_clear: Literal["keep", "regenerate"] = "keep"
    submission: Submission | None = None

    @field_validator("sampling")
    @classmethod
    def _known_sampling(cls, value: dict[str, Any]) -> dict[str, Any]:
        n = value.get("n", 1)
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(
                f"n: the number of completions must be a whole number of at least 1, but it is {n!r}"
            )
        check_sampling(value)
        return value

    @model_validator(mode="after")
    def _requests_depend_on_rows(self) -> BatchInferenceSpec:
        check_placeholders(self.prompt, of_row=self.sampling_column is not None)
        return self

    @model_validator(mode="after")
    def _model_folders_are_absolute(self) -> BatchInferenceSpec:
        if self.engine.processor.get("config", _VLLM_PROCESSOR) != _VLLM_PROCESSOR:
            return self  # a server's model names look like paths
        for name, value in [("model", self.model.name), *self.engine.args.items()]:
            check = check_absolute if name == "download_dir" else check_model_folder
            if name in _MODEL_FOLDERS and isinstance(value, str) and value:
                try:
                    check(value)
                except ValueError as error:
                    field = name if name == "model" else f"engine_args: {name}"
                    raise ValueError(f"{field}: {error}") from None
        return self

    @model_validator(mode="after")
    def _no_reasoning_before_json(self) -> BatchInferenceSpec:
        if self.response_format.json_object or self.sampling.get("structured_outputs"):
            check_reasoning(self.engine.reasoning_parser)
        return self

    @model_validator(mode="after")
    def _source_is_not_destination(self) -> BatchInferenceSpec:
        destination = self.destination.uri
        for path in self.source.paths:
            if plain(path) == plain(destination):
                raise ValueError(f"destination: {destination!r} is also the source; choose another folder")
            if reads_into(path, destination):
                raise ValueError(
                    f"destination: {destination!r} lies inside the source {path!r}, so the next run would "
                    "read its own output; choose a folder outside"
                )
        return self

    @model_validator(mode="after")
    def _reuse_lies_apart(self) -> BatchInferenceSpec:
        if self.reuse is None:
            return self
        store = self.reuse.uri
        others = [("destination", self.destination.uri), *(("source", path) for path in self.source.paths)]
        for what, path in others:
            if plain(path) == plain(store):
                raise ValueError(f"reuse: {store!r} is also the {what}; choose another folder")
            if reads_into(path, store) or reads_into(store, path):
                raise ValueError(
                    f"reuse: {store!r} and the {what} {path!r} lie one inside the other, so rows and stored "
                    "responses would mix; choose a folder apart"
                )
        return self

    @property
    def fingerprint(self) -> str:
        """32 hex digits over everything that changes what is generated or delivered, and nothing else."""
        content = self.model_dump(
            mode="json", exclude={"submission": True, "limits": True, "model": {"template_time"}}
        )
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[
            :32
        ]

    @property
    def response_digest(self) -> str:
        """32 hex digits over what decides a response: prompt, model, sampling and the engine's numerics.

        Sizes, replicas and the destination's format are left out, so a job that is resumed on another
        cluster, or with another plan, keeps the rows it has.
        """
        content = self.model_dump(
            mode="json",
            include={"prompt", "model", "sampling", "sampling_column", "response_format"},
            exclude={"model": {"template_time"}},
        )
        content["engine"] = [self.engine.kind, self.numerics, self.processor_numerics]
        if self.model_task != GENERATE:
            content["model_task"] = self.model_task
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[
            :32
        ]

    @property
    def numerics(self) -> dict[str, Any]:
        """The engine's arguments that may change a response, and not only sizes.

        The context length counts where responses may be as long as it leaves room.
        """
        bounded = self.sampling.get("max_tokens") is not None
        sizes = _SIZING_ARGS | ({"max_model_len"} if bounded else set())
        return {name: value for name, value in self.engine.args.items() if name not in sizes}

    @property
    def processor_numerics(self) -> dict[str, Any]:
        """The same of the processor's fields."""
        fields = self.engine.processor.items()
        return {name: value for name, value in fields if name not in _SIZING_FIELDS}

    @property
    def needs_json(self) -> bool:
        """Whether a good response must parse as JSON."""
        structured = self.sampling.get("structured_outputs") or {}
        asked = isinstance(structured, dict) and (structured.get("json") or structured.get("json_object"))
        return bool(self.response_format.json_object or asked)


def check_sampling(values: Mapping[str, Any]) -> None:
    """Refuse sampling parameters that no engine can honour, of a job or of a row.

    :raises ValueError: one's result has no column in the dataset, or its value is no finite number.
    """
    for name, value in values.items():
        if name in NOT_KEPT and value is not None and value is not False:
            raise ValueError(f"{name}: the dataset has no column for log probabilities; remove it")
        if not _is_finite(value):
            raise ValueError(f"{name}: {shown(value)} is not finite; give a finite number")


def check_reasoning(parser: str) -> None:
    """Refuse a reasoning parser where the response must be JSON or otherwise structured.

    :raises ValueError: there is one.
    """
    if parser:
        raise ValueError(
            f"engine.args: reasoning_parser {parser!r} lets the model reason before its answer, and the "
            "dataset has no column for reasoning, so no response would be JSON or structured; remove it, and "
            "switch reasoning off where the model can (chat_template_kwargs={'enable_thinking': False})"
        )


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
