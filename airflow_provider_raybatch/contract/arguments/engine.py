# SPDX-License-Identifier: Apache-2.0
"""Which model answers, where its adapters (LoRA) lie, and which engine runs it, how many times."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, field_validator, model_validator

from airflow_provider_raybatch.contract.arguments.limits import AcceleratorType
from airflow_provider_raybatch.contract.base import SpecPart, shown
from airflow_provider_raybatch.contract.location import check_location, check_model_folder


def check_adapter(location: str) -> str:
    """Refuse what can't be an adapter's location.

    :returns: the location.
    :raises ValueError: one sentence, without the field's name.
    """
    scheme, has_scheme, _ = location.partition("://")
    if has_scheme and scheme.lower() == "s3":
        check_location(location, ("s3",))
    elif has_scheme and scheme.lower() != "file":
        raise ValueError(
            f"{scheme + '://'!r} is not read for adapters; use s3://, a folder that all nodes see, or a "
            "Hugging Face id"
        )
    else:
        check_model_folder(location)
    return location


AdapterLocation = Annotated[str, Field(min_length=1), AfterValidator(check_adapter)]
"""Where an adapter lies: a folder, ``s3://`` or a name on the Hugging Face hub."""


def is_on_hub(location: str) -> bool:
    """Whether this is a name on the Hugging Face hub."""
    return not location.startswith("/") and "://" not in location


def revision_of(location: str) -> tuple[str, str | None]:
    """The location without its revision, and the revision of a name on the hub (``name@revision``)."""
    name, _, revision = location.partition("@") if is_on_hub(location) else (location, "", "")
    return name, revision or None


class ModelArguments(SpecPart):
    """The model, as vLLM names it, and its adapters (LoRA).

    :param adapter_digests: of the adapters' content, by name; filled in by the job.
    :param template_time: epoch seconds that a chat template prints which asks for the date; filled in by the
        job, so that all rows of a run have one date.
    """

    model: str = Field(min_length=1)
    adapter: AdapterLocation | None = None
    adapters: dict[str, str] = Field(default_factory=dict)
    adapter_column: str | None = Field(default=None, min_length=1)
    adapter_digests: dict[str, str] = Field(default_factory=dict)
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    template_time: float | None = None

    @field_validator("adapters")
    @classmethod
    def _adapters_can_be_read(cls, adapters: dict[str, str]) -> dict[str, str]:
        for name, location in adapters.items():
            if not name:
                raise ValueError("an adapter has an empty name, which rows have for the model alone; name it")
            try:
                check_adapter(location)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return adapters

    @property
    def adapter_locations(self) -> dict[str, str]:
        """Where each adapter of the job lies, by the name that requests have for it."""
        return self.adapters if self.adapter is None else {revision_of(self.adapter)[0]: self.adapter}

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


_GPU_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
_MORE_ENGINES = frozenset({"data_parallel_size", "dp_size", "nnodes"})
"""Sizes that spread over more than the one replica that Ray reserves; SGLang's included."""
_SIZING_FIELDS = frozenset({"batch_size", "concurrency", "headers", "max_concurrent_batches", "qps"})
"""Of Ray's processor configs; headers, since tokens in them change from night to night."""
_RANGE = re.compile(r"[\[(]([^,]*),([^,]*)[\])]")
"""A range as a template leaves it."""
_UNITS_OF_GPU = 10_000
"""In which Ray counts a GPU."""
_AtLeastOne = Annotated[int, Field(ge=1)]
_AT_LEAST_ONE = TypeAdapter(_AtLeastOne)


class EngineArguments(SpecPart):
    """Which engine answers, and how many of it."""

    engine: Literal["vllm", "ray_data_llm", "echo"] = "vllm"
    engine_args: dict[str, Any] = Field(default_factory=dict)
    replicas: _AtLeastOne | tuple[_AtLeastOne, _AtLeastOne] | None = None
    accelerator_type: AcceleratorType | None = None
    num_cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    num_gpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rows_in_flight: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    processor: dict[str, Any] = Field(default_factory=dict)
    max_restarts: int = Field(default=3, ge=0)

    @field_validator("replicas", mode="before")
    @classmethod
    def _number_or_range(cls, value: Any) -> Any:
        if isinstance(value, str) and (found := _RANGE.fullmatch(value.strip())):
            value = [one.strip(" '\"") for one in found.groups()]
        if value is None:
            return None
        if isinstance(value, (list, tuple)):
            return _range(value)
        try:
            return _AT_LEAST_ONE.validate_python(value)
        except ValidationError:
            raise ValueError(f"it must be a whole number of at least 1, but it is {shown(value)}") from None

    @field_validator("engine_args")
    @classmethod
    def _whole_parallel_sizes(cls, args: dict[str, Any]) -> dict[str, Any]:
        if "model" in args:
            raise ValueError(
                "model: the operator has an argument for it; write model=..., and remove it here"
            )
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

    @field_validator("num_gpus")
    @classmethod
    def _share_of_one_gpu(cls, share: float | None) -> float | None:
        if share is None:
            return None
        if share > 1:
            raise ValueError(
                f"it is the share of one GPU that an engine takes, at most 1, but it is {share:g}; leave it "
                "out, and set tensor_parallel_size in engine_args to the GPUs of one engine"
            )
        units = share * _UNITS_OF_GPU
        if units < 1 or abs(units - round(units)) > 1e-6:
            raise ValueError(
                f"Ray counts GPUs in ten-thousandths, but it is {share!r}; round it to four decimal places"
            )
        return share

    @model_validator(mode="after")
    def _shares_one_gpu(self) -> EngineArguments:
        if self.num_gpus is None:
            return self
        share = f"num_gpus: {self.num_gpus:g}"
        if self.gpus_per_replica > 1:
            raise ValueError(
                f"{share} is for engines on one GPU, and the parallel sizes in engine_args make it "
                f"{self.gpus_per_replica}; remove one of the two"
            )
        if not self.shares_gpu:
            return self
        if self.engine_args.get("distributed_executor_backend") == "ray":
            raise ValueError(
                f"{share} is a share of a GPU, and distributed_executor_backend 'ray' takes whole ones; "
                "remove it from engine_args"
            )
        memory = self.engine_args.get("gpu_memory_utilization")
        if isinstance(memory, (int, float)) and memory > self.num_gpus:
            raise ValueError(
                f"engine_args: gpu_memory_utilization {memory:g} is more than the share num_gpus="
                f"{self.num_gpus:g}, so engines would not fit beside each other on it; leave it out, "
                "or raise num_gpus"
            )
        return self

    @model_validator(mode="after")
    def _reasoning_is_split(self) -> EngineArguments:
        parser = self.reasoning_parser
        if parser == "openai_gptoss" and self.engine != "ray_data_llm":
            raise ValueError(
                "engine_args: reasoning_parser 'openai_gptoss' can't split a text into reasoning and answer, "
                "only tell where the answer begins; serve the model with vLLM's server and use engine "
                "'ray_data_llm' with HttpRequestProcessorConfig"
            )
        return self

    @property
    def reasoning_parser(self) -> str:
        """Name of the parser by which vLLM tells reasoning from the answer; empty without one."""
        inside = self.engine_args.get("structured_outputs_config")
        nested = inside.get("reasoning_parser") if isinstance(inside, dict) else None
        return str(self.engine_args.get("reasoning_parser") or nested or "")

    @property
    def reasoning_plugin(self) -> str:
        """File with a parser of the user's; empty without one."""
        return str(self.engine_args.get("reasoning_parser_plugin") or "")

    @property
    def splits_reasoning(self) -> bool:
        """Whether a response is what follows the reasoning, which has columns of its own."""
        return bool(self.reasoning_parser) and self.engine != "ray_data_llm"

    @property
    def gpus_per_replica(self) -> int:
        """GPUs one replica spans: the product of vLLM's sizes that add GPUs to an engine."""
        return math.prod(int(self.engine_args.get(name, 1)) for name in _GPU_SIZES)

    @property
    def shares_gpu(self) -> bool:
        """Whether an engine takes a part of a GPU, and leaves the rest to others."""
        return self.num_gpus is not None and self.num_gpus < 1

    @property
    def has_parallel_sizes(self) -> bool:
        """Whether the GPUs of a replica are set; one is also a size."""
        return self.num_gpus is not None or any(name in self.engine_args for name in _GPU_SIZES)

    @property
    def processor_numerics(self) -> dict[str, Any]:
        """The processor's fields that may change a response, and not only sizes."""
        return {name: value for name, value in self.processor.items() if name not in _SIZING_FIELDS}


def _range(value: list[Any] | tuple[Any, ...]) -> tuple[int, int]:
    try:
        fewest, most = (_AT_LEAST_ONE.validate_python(one) for one in value)
    except ValueError:  # pydantic's, or another number of items than two
        fewest, most = 1, 0
    if most < fewest:
        raise ValueError(
            "a range is (fewest, most), two whole numbers of at least 1 in this order, but it is "
            f"{shown(tuple(value))}"
        )
    return fewest, most
