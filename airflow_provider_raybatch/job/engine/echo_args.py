# SPDX-License-Identifier: Apache-2.0
"""Engine arguments and sampling parameters of the echo engine, and the log that it writes where asked."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, field_validator

from airflow_provider_raybatch.contract.base import ContractModel, Model, parse
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.vllm_args import check_sampling_names, schema_name


class EchoOptions(ContractModel):
    """`engine_args` of the echo engine.

    :param seconds_per_token: how long a generated word takes, to imitate a model's pace.
    :param startup_seconds: how long the engine takes to start.
    :param startup_spread: at most so many seconds more, at random, so that replicas start one by one.
    :param max_model_len: words of prompt and completion together; longer prompts fail as they do in vLLM.
    :param takes_images: whether requests may have images, as those to a vision-language model.
    :param embedding_size: numbers of a vector, with `model_task` ``embed``.
    :param labels: names of the labels, with `model_task` ``classify``.
    :param max_num_seqs: requests that are answered at the same time; the others wait.
    :param fail_pattern: a request whose prompt contains this text fails, to try out dead letters.
    :param kill_pattern: a request whose prompt contains this text ends the engine's process, to try out
        recovery.
    :param hang_pattern: a request whose prompt contains this text is never answered, to try out
        `no_progress_timeout`.
    :param reasoning_parser: any name; an echo does not reason, so the columns of reasoning are null.
    :param max_loras: adapters that the engine holds at once; where the job has more, rows of one come
        together, as with vLLM. By default it holds all.
    :param tensor_parallel_size: reserve the GPUs that vLLM would, to try out where replicas run; by default
        an echo has no GPU. Where no node has so many, a worker process runs on each, as vLLM's do.
    :param pipeline_parallel_size: the same; the GPUs are the product.
    :param request_log: a folder in which each engine's process writes a file of JSON lines, each with a time
        (`at`, epoch seconds) and an `event`: ``open`` with the `submission` that has the engine from then on
        and its `workers` on several nodes, ``close``, ``start`` with a `prompt` when its request gets a slot,
        and ``end`` when it is generated, before the answer goes anywhere. A request that fails, kills or
        hangs by its pattern has no ``end``.
    """

    seconds_per_token: float = Field(default=0.0, ge=0)
    startup_seconds: float = Field(default=0.0, ge=0)
    startup_spread: float = Field(default=0.0, ge=0)
    max_model_len: int = Field(default=8192, ge=2)
    takes_images: bool = True
    embedding_size: int = Field(default=64, ge=1)
    labels: list[str] = Field(default=["LABEL_0", "LABEL_1"], min_length=1)
    max_num_seqs: int = Field(default=1024, ge=1)
    fail_pattern: str | None = None
    kill_pattern: str | None = None
    hang_pattern: str | None = None
    reasoning_parser: str | None = None
    max_loras: int | None = Field(default=None, ge=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    request_log: str | None = None


class EchoSampling(ContractModel):
    """The sampling parameters that an echo follows; vLLM's others are ignored."""

    n: int = Field(default=1, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    seed: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    structured_outputs: dict[str, Any] = Field(default_factory=dict)

    @field_validator("structured_outputs")
    @classmethod
    def _schemas_are_objects(cls, given: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(schema := given.get("json"), str):
            return given
        try:
            return {**given, "json": json.loads(schema)}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"json: the text is not JSON ({error}); give a JSON schema") from None

    model_config: ClassVar[ConfigDict] = ConfigDict(**{**ContractModel.model_config, "extra": "ignore"})


def check_echo(spec: BatchInferenceSpec) -> EchoOptions:
    """The options of an echo.

    :raises SpecError: an option or a sampling parameter has a wrong value.
    """
    parsed("sampling", EchoSampling, spec.sampling)
    return parsed("engine_args", EchoOptions, spec.engine_args)


def check_names(spec: BatchInferenceSpec) -> list[str]:
    """Check the names of sampling parameters, if vLLM is installed here.

    :returns: names that only vLLM could check, where it is not installed.
    :raises PreflightError: vLLM has no such sampling parameter.
    """
    unchecked = check_sampling_names(spec.sampling, schema_name(spec))
    return [name for name in unchecked if name not in EchoSampling.model_fields]


def parsed(field: str, model: type[Model], values: Mapping[str, Any]) -> Model:
    """The values of an argument.

    :raises SpecError: one is wrong; its sentence begins with the field.
    """
    try:
        return parse(model, dict(values))
    except SpecError as error:
        raise SpecError(f"{field}.{error}") from None


class RequestLog:
    """One file per process; each line is one write(2), so a SIGKILL leaves whole lines.

    :param folder: ``None`` for no log.
    """

    def __init__(self, folder: str | None) -> None:
        self._file = None
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            path = Path(folder) / f"{socket.gethostname()}-{os.getpid()}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, event: str, **fields: object) -> None:
        """Write an event, if there is a log."""
        if self._file is not None:
            line = json.dumps({"at": time.time(), "event": event, **fields})
            os.write(self._file, f"{line}\n".encode())
