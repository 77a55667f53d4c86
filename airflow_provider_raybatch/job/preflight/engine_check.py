# SPDX-License-Identifier: Apache-2.0
"""Checks of an engine's arguments, sampling and model, before one starts for the job, and where they run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import echo_args, forced, vllm_args
from airflow_provider_raybatch.job.failures.public_reasons import guarded_task
from airflow_provider_raybatch.job.planning import cluster_view, plan
from airflow_provider_raybatch.job.planning.context_length import MEASURED
from airflow_provider_raybatch.job.planning.fit import longest_wait
from airflow_provider_raybatch.job.preflight import known_models
from airflow_provider_raybatch.job.preflight.adapter_check import as_located, notes_of
from airflow_provider_raybatch.job.preflight.check import Facts, first_failure
from airflow_provider_raybatch.job.preflight.image_check import check_decoder, check_echo_images
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.preflight.memory_check import (
    check_memory,
    checked_context,
    expected_tokens,
    refuse_share,
    with_length,
)
from airflow_provider_raybatch.job.preflight.model_check import FILES, ModelCheck
from airflow_provider_raybatch.job.preflight.model_files import is_on_disk, refuse_missing
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.ray_data_llm.variants import engine_is_here
from airflow_provider_raybatch.job.work import CheckedModel

Emit = Callable[[events.Event], None]
Environment = dict[str, SecretStr]


def wait_for_engine_node(
    spec: BatchInferenceSpec, held_before: bool, emit: Emit, check: Callable[[], None] = lambda: None
) -> None:
    """Wait for a node with room for a replica; if the driver's node has vLLM, only refuse what never fits.

    :param check: see :func:`~airflow_provider_raybatch.job.planning.cluster_view.wait_for`.
    :raises PreflightError: the cluster can't add such a node, or did not in time.
    """
    if spec.engine == "echo" or not engine_is_here(spec):
        return
    cluster = cluster_view.view()
    one = replace(plan.make(spec, 1, cluster), replicas=1, fewest_replicas=None)
    if not one.gpus or cluster_view.gpu_node(spec.accelerator_type) is not None:
        return
    if vllm_is_here():
        seconds = longest_wait(spec.cluster_wait, cluster.autoscaler is not None, held_before)
        cluster_view.refuse_never(one, cluster, seconds)
        return
    with ExitStack() as held:
        cluster_view.wait_for(one, spec.cluster_wait, held_before, emit, held, check)


def vllm_is_here() -> bool:
    """Whether the driver's node has vLLM."""
    return importlib.util.find_spec("vllm") is not None


def check_names(spec: BatchInferenceSpec) -> None:
    """Check names of vLLM's arguments, if the driver's node has vLLM.

    :raises PreflightError: vLLM has no such name.
    """
    if spec.engine != "echo" and engine_is_here(spec):
        vllm_args.check_names(spec)


def check_engine(
    spec: BatchInferenceSpec, requests: list[Request], environment: Environment, emit: Emit, launch: Launch
) -> ModelCheck:
    """Check arguments, sampling and model of the engine.

    :param launch: replicas that have started may be asked.
    :raises RaybatchError: one sentence about the first problem found.
    """
    check_decoder(spec, requests)
    if spec.engine == "echo":
        check_echo_images(spec, requests)
        if unchecked := echo_args.check_names(spec):
            text = (
                f"sampling: {', '.join(map(repr, unchecked))} could not be checked, since the driver's node "
                "has no vLLM; engine='echo' ignores them, and engine='vllm' refuses unknown names."
            )
            emit(events.Notice(level="warning", message=text))
    if spec.engine == "echo" or not engine_is_here(spec):
        return ModelCheck(digests=Digests(spec=spec.response_digest))
    checked = _checked_model(AskedModel(spec, requests, environment), launch)
    for text in _warnings(spec, checked):
        emit(events.Notice(level="warning", message=text))
    return checked


def _warnings(spec: BatchInferenceSpec, checked: ModelCheck) -> Iterator[str]:
    """What may spoil responses."""
    if surplus := checked.surplus_tokens:
        yield (
            f"model: its tokenizer is longer than its vocabulary, by {len(surplus):,} (first "
            f"{surplus[0]!r}); rows with such a token will be dead letters."
        )
    yield from notes_of(spec, checked.adapters)
    if checked.absent_bos:
        yield (
            f"chat_template: no chat begins with {checked.absent_bos!r}, as the texts do that the model was "
            "trained with; put {{ bos_token }} at the template's beginning, or responses may be worse."
        )
    if checked.about_reasoning:
        yield checked.about_reasoning


def tell_of_memory(spec: BatchInferenceSpec, checked: ModelCheck, emit: Emit) -> ModelCheck:
    """Say what the model leaves of a GPU, and how long rows may be, if the job derives that.

    :returns: the check with the context length of the job's engines.
    :raises PreflightError: no GPU of the cluster holds the weights, or the longest row that was counted.
    """
    cluster, sizes = cluster_view.view(), checked.sizes
    if not _has_cache(spec):
        if spec.shares_gpu and sizes is not None:
            refuse_share(spec, sizes, cluster)
        return checked
    length = checked_context(spec, sizes, cluster, checked.context, checked.needed)
    if length.max_model_len is not None:
        shown = "auto" if length.max_model_len == MEASURED else f"{length.max_model_len:,}"
        level = "warning" if checked.needed > length.tokens else "info"
        emit(events.Notice(level=level, message=f"max_model_len: {shown} ({length.reason})"))
    sized = with_length(spec, length)
    if (told := check_memory(sized, sizes, cluster)) is not None:
        emit(told)
    return replace(checked, length=length, kv_cache_tokens=expected_tokens(sized, sizes, cluster))


def tell_of_choices(
    spec: BatchInferenceSpec, checked: ModelCheck, requests: Sequence[Request], emit: Emit
) -> None:
    """Say once that responses may have more tokens than `max_tokens`; the echo engine cuts no choice."""
    defaults = {**checked.generation_defaults, **spec.sampling}
    told = (forced.lengthened({**defaults, **request.sampling}) for request in requests)
    text = next(filter(None, told), "")
    if text and spec.engine != "echo":
        emit(events.Notice(message=text))


def _checked_model(asked: AskedModel, launch: Launch) -> ModelCheck:
    """Use a kept check, or make one: where it has not counted these rows, they may not fit the engine."""
    found = _kept_or_made(asked, launch)
    if found.is_kept and _has_cache(asked.spec) and _may_lack_room(asked.spec, found):
        return _made(known_models.check_rows_anew, asked, launch)
    return found


def _has_cache(spec: BatchInferenceSpec) -> bool:
    """Whether its engines have a KV cache of this job's making; most pooling models have none."""
    return spec.engine == "vllm" and not spec.pools


def _may_lack_room(spec: BatchInferenceSpec, kept: ModelCheck) -> bool:
    try:
        length = checked_context(spec, kept.sizes, cluster_view.view(), kept.context, kept.needed)
    except PreflightError:
        return True
    return length.max_model_len is not None and kept.needed > length.tokens


def _kept_or_made(asked: AskedModel, launch: Launch) -> ModelCheck:
    spec = asked.spec
    node = cluster_view.gpu_node(spec.accelerator_type)
    is_here = node in {None, ray.get_runtime_context().get_node_id()}
    if is_here and (node is not None or cluster_view.has_one_node()):
        refuse_missing(asked)
    if is_here and (known := known_models.kept(asked)) is not None:
        return known
    if is_here or not is_on_disk(spec.model):
        first_failure(FILES, Facts(asked))
    return _made(known_models.check_unless_kept, asked, launch)


def _made(check: Callable[[AskedModel], ModelCheck], asked: AskedModel, launch: Launch) -> ModelCheck:
    """What a check finds in a replica that has started, or in a task.

    Both run on a node with the accelerator: the head may have neither vLLM nor the model.
    """
    if (checked := launch.ask(check, asked)) is not None:
        return checked
    options = beside_the_model(cluster_view.gpu_node(asked.spec.accelerator_type))
    task = ray.remote(guarded_task(check, asked.spec.shows_rows)).options(**options)
    made: ModelCheck = ray.get(task.remote(asked))
    return made


def beside_the_model(node: str | None) -> dict[str, Any]:
    """Ray's options for a task that needs the model's files, but no GPU.

    :param node: id of one with the accelerator, if there is one.
    """
    options: dict[str, Any] = {"num_cpus": 0, "max_retries": 1}
    if node is not None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
    return options


def checked_model(spec: BatchInferenceSpec, checked: ModelCheck) -> CheckedModel:
    """What engines load."""
    return CheckedModel(as_checked(spec, checked), f"{checked.digests.model}-{checked.digests.tokenizer}")


def as_checked(spec: BatchInferenceSpec, checked: ModelCheck) -> BatchInferenceSpec:
    """Pin the versions that were checked, how JSON is written, and the context length if it is derived.

    Ray's processor uses vLLM's async engine, which ignores the model's `generation_config`.
    """
    engine_args = {**spec.engine_args, **checked.lora_args, **checked.revisions}
    if checked.structured_outputs_config:
        engine_args["structured_outputs_config"] = checked.structured_outputs_config
    if checked.length is not None and checked.length.max_model_len is not None:
        engine_args["max_model_len"] = checked.length.max_model_len
    changed: dict[str, Any] = {"engine_args": engine_args, **as_located(spec, checked.adapters)}
    if spec.engine == ray_data_llm.NAME:
        changed["sampling"] = {**checked.generation_defaults, **spec.sampling}
    return spec.model_copy(update=changed)
