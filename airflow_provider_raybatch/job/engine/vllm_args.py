# SPDX-License-Identifier: Apache-2.0
"""From the spec to vLLM's own arguments, checked against the installed vLLM."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.arguments.images import PROCESSOR_CACHE
from airflow_provider_raybatch.contract.arguments.sampling import check_sampling
from airflow_provider_raybatch.contract.arguments.vllm_sampling import OTHER_SYSTEMS
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import nearest
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_models, vllm_compat_parsers
from airflow_provider_raybatch.job.engine.gpu import memory_of_own_gpu
from airflow_provider_raybatch.job.engine.request_values import tidied
from airflow_provider_raybatch.job.failures.diagnosis import reason_of
from airflow_provider_raybatch.job.planning.fit import UTILIZATION, utilization_of
from airflow_provider_raybatch.job.request.json_schema import check_schema

_MOST_CPU_CACHE = 4 * 1024**3
_FLOAT32_ROOM = 8
"""A model runs in float32 if the free memory is more than so many times its weights on disk."""
_FEW = 15
_OF_SCHEMA = "sampling: structured_outputs: json"

_OURS = {
    "model": "model",
    "detokenize": "the engine, which detokenises in batches",
    "output_kind": "the engine, which asks for final outputs only",
}


def engine_args(spec: BatchInferenceSpec, spans_nodes: bool = False) -> dict[str, Any]:
    """Arguments for ``AsyncEngineArgs``. The user's win over every default set here.

    :param spans_nodes: whether its GPUs are the bundles of this actor's placement group.
    :raises PreflightError: vLLM has no such argument.
    """
    from vllm import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    _check_names("engine_args", spec.engine_args, known, "argument")
    defaults: dict[str, Any] = {
        "model": spec.model,
        # As in LLM(): statistics of each token cost CPU time that the engine and its front end need.
        "disable_log_stats": True,
        "enable_log_requests": False,
        # The engine's process mirrors this cache by the order of requests, and ours overtake each other.
        # Texts don't use it, so that a warm engine serves jobs with and without images.
        PROCESSOR_CACHE: 0,
    }
    if spec.gpus_per_replica > 1:
        # On one node, vLLM's own processes see exactly the GPUs that Ray reserves for the replica. Its Ray
        # executor puts an actor on each bundle of the placement group in which the replica runs.
        defaults["distributed_executor_backend"] = "ray" if spans_nodes else "mp"
    if spec.shares_gpu and not vllm_compat.is_on_cpu():
        defaults[UTILIZATION] = utilization_of(spec.num_gpus or 1.0, memory_of_own_gpu())
    if spec.reasoning_parser:
        defaults["reasoning_parser"] = spec.reasoning_parser  # thinking_token_budget wants it there
    if spec.engine_args.get("enable_lora"):
        defaults["worker_extension_cls"] = vllm_compat_models.FIT_CLASS
    if vllm_compat.is_on_cpu():
        defaults.update(cpu_defaults(spec.model, spec.engine_args))
    return {**{name: value for name, value in defaults.items() if name in known}, **spec.engine_args}


def check_names(spec: BatchInferenceSpec) -> None:
    """Check names of engine arguments and sampling parameters, if vLLM is installed here; imports nothing.

    :raises PreflightError: vLLM has no such name, or a value can't be used.
    """
    if (known := vllm_compat.engine_arg_names()) is not None:
        _check_names("engine_args", spec.engine_args, known, "argument")
        for step in spec.questions():
            check_sampling_names(step.sampling, schema_name(step))


def cpu_defaults(model: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults with which vLLM's CPU build starts beside Ray on an ordinary machine, and is fast there.

    :param model: folder or name of the model.
    :param given: the user's engine arguments.
    """
    import psutil  # vLLM brings it; a cluster without vLLM need not have it

    # torch.compile takes minutes of CPU time that a small CPU job never earns back.
    defaults: dict[str, Any] = {"enforce_eager": True}
    # vLLM would take 92 % of a memory node that it shares with Ray, and fail where that is not free.
    if "gpu_memory_utilization" not in given and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        defaults["kv_cache_memory_bytes"] = min(_MOST_CPU_CACHE, psutil.virtual_memory().available // 5)
    if not vllm_compat.has_bfloat16_kernels() and "quantization" not in given:
        # Without such instructions oneDNN has no bfloat16, and PyTorch's own takes up to three times longer.
        weights = _bytes_of_weights(model)
        if weights is not None and weights * _FLOAT32_ROOM < psutil.virtual_memory().available:
            defaults["dtype"] = "float32"
    return defaults


def _bytes_of_weights(model: str) -> int | None:
    """Bytes of the weights in a local folder; ``None`` without any, and if they are quantised."""
    with suppress(OSError, ValueError):
        if "quantization_config" not in json.loads(Path(model, "config.json").read_bytes()):
            return sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) or None
    return None


def sampling_params(values: Mapping[str, Any], of_schema: str = _OF_SCHEMA) -> Any:
    """VLLM's ``SamplingParams``, with `structured_outputs` given as a plain ``dict``.

    :param of_schema: where their JSON schema comes from, for messages.
    :raises ValueError: vLLM refuses a value.
    :raises PreflightError: vLLM has no such parameter.
    """
    import msgspec  # vLLM brings it
    from vllm import SamplingParams

    check_sampling_names(values, of_schema)
    try:
        given = tidied(values, SamplingParams.__annotations__)
        for name, kind in vllm_compat_parsers.sampling_objects().items():
            if isinstance(given.get(name), Mapping):
                _check_names(f"sampling: {name}", given[name], inspect.signature(kind).parameters)
                given[name] = kind(**given[name])
        params = SamplingParams(**given)
    except PreflightError:
        raise
    except Exception as error:  # its class differs between vLLM's versions
        raise ValueError(reason_of(error)) from error
    try:
        # A float for a whole number would end the engine's process.
        msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    except TypeError:
        pass  # vLLM sends objects that msgspec alone can't encode
    except Exception as error:  # msgspec's own, or one of vLLM's checks of a part
        raise ValueError(str(error)) from error
    return params


def schema_name(spec: BatchInferenceSpec) -> str:
    """The argument that has the job's JSON schema, as messages name it."""
    return _OF_SCHEMA if spec.response_schema is None else "response_format: the schema"


def check_sampling_names(values: Mapping[str, Any], of_schema: str = _OF_SCHEMA) -> list[str]:
    """Check the names of sampling parameters against the installed vLLM, without importing it.

    :param of_schema: see :func:`schema_name`.
    :returns: names that can't be checked here, since vLLM is not installed.
    :raises PreflightError: vLLM has no such sampling parameter, or the engine sets it.
    """
    for name in values:
        if name in _OURS:
            raise PreflightError(f"sampling: {name!r} is set by {_OURS[name]}; remove it.")
    check_sampling_values(values, of_schema)
    names = vllm_compat.sampling_names()
    if names is None:
        return list(values)
    known, known_inside = names
    _check_names("sampling", values, known)
    structured = values.get("structured_outputs")
    if isinstance(structured, Mapping):
        # vLLM itself ignores names in it that it doesn't know.
        _check_names("sampling: structured_outputs", structured, known_inside)
    return []


def check_sampling_values(values: Mapping[str, Any], of_schema: str = _OF_SCHEMA) -> None:
    """Check the values of sampling parameters without vLLM.

    :param of_schema: see :func:`schema_name`.
    :raises PreflightError: no engine can honour one, or its JSON schema is broken.
    """
    try:
        check_sampling(values)
    except ValueError as error:
        raise PreflightError(f"sampling: {error}.") from None
    try:
        check_schema(values.get("structured_outputs"))
    except ValueError as error:
        raise PreflightError(f"{of_schema} {error}.") from None


def _check_names(
    where: str, values: Mapping[str, Any], known: Collection[str], noun: str = "parameter"
) -> None:
    for name in values:
        if name not in known:
            version = vllm_compat.installed_version()
            raise PreflightError(f"{where}: vLLM {version} has no {noun} {name!r}{_meant(name, known)}.")


def _meant(name: str, known: Collection[str]) -> str:
    if name in OTHER_SYSTEMS and "structured_outputs" in known:
        return f"; write {OTHER_SYSTEMS[name]}"
    if near := nearest(name, known):
        return f"; did you mean {near!r}"
    names = sorted(one for one in known if not one.startswith("_"))
    return (
        f" (it has {', '.join(names)})" if len(names) < _FEW else "; see vLLM's documentation for its names"
    )
