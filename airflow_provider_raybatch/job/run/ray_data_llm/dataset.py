# SPDX-License-Identifier: Apache-2.0
"""The pipeline around Ray's processor."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray.data

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.failures.public_reasons import guarded_task
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.run.ray_data_llm import stages
from airflow_provider_raybatch.job.run.ray_data_llm.variants import variant
from airflow_provider_raybatch.job.work import Job, WorkItem

_STAGE_CPUS = 0.25
NAME = "ray_data_llm"


def check_processor(spec: BatchInferenceSpec) -> None:
    """Refuse what Ray's processor would silently get wrong.

    :raises PreflightError: the job needs a feature of engine ``vllm``, or there is no server to call.
    """
    if int(spec.sampling.get("n", 1)) > 1:
        raise PreflightError(
            f"sampling: engine 'ray_data_llm' keeps one of n={spec.sampling['n']} completions; use "
            "engine 'vllm'."
        )
    if spec.sampling_column is not None:
        raise PreflightError(
            f"sampling_column: engine 'ray_data_llm' gives all rows the keys of {spec.sampling_column!r} "
            "that any row has; use engine 'vllm'."
        )
    variant(spec).check()


def dataset(job: Job, plan: Plan, items: Sequence[WorkItem]) -> ray.data.Dataset:
    """Read, pass through Ray's processor, write. Lazy: nothing runs until it is consumed."""
    with _bounded_retries(job.spec.max_restarts) as options:
        return _dataset(job, plan, items, {"num_cpus": _STAGE_CPUS, **options})


@contextlib.contextmanager
def _bounded_retries(most: int) -> Iterator[dict[str, Any]]:
    """Options of tasks that are repeated `most` times if their process ends; by default, without limit.

    Ray 2.60 deprecates them, and has no successor; a Ray without them keeps its own way.
    """
    kinds = [one.kind for one in inspect.signature(ray.data.Dataset.map_batches).parameters.values()]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`ray_remote_args` is deprecated")
        yield {"max_retries": most} if inspect.Parameter.VAR_KEYWORD in kinds else {}


def _dataset(job: Job, plan: Plan, items: Sequence[WorkItem], cpus: dict[str, Any]) -> ray.data.Dataset:
    from ray.data.llm import build_processor

    kind = variant(job.spec)
    processor = build_processor(
        kind.config(plan),
        preprocess=functools.partial(stages.before, kind=kind.name),
        postprocess=_keep,
        preprocess_map_kwargs=cpus,
        postprocess_map_kwargs=cpus,
    )
    _bound_restarts(processor, job.spec.max_restarts)
    # Pickled, since Arrow has no type for them.
    work = ray.data.from_items(
        [{"item": pickle.dumps(item)} for item in items], override_num_blocks=len(items)
    )
    guarded = functools.partial(guarded_task, shows_rows=job.spec.shows_rows)
    rows = work.map_batches(guarded(stages.read), fn_kwargs={"job": job}, batch_size=1, **cpus)
    checked = processor(rows).map(guarded(stages.checked_response), fn_kwargs={"job": job}, **cpus)
    return checked.map_batches(
        guarded(stages.write),
        fn_kwargs={"job": job},
        batch_size=plan.rows_per_chunk,
        batch_format="pyarrow",
        **cpus,
    )


def added(total: ReplicaProgress | None, one: ReplicaProgress) -> ReplicaProgress:
    """Add up reports. Ray's stages don't say which engine answered a row, so all engines count as one."""
    if total is None:
        return replace(one, replica=NAME)
    sums = ("rows", "written", "errors", "input_tokens", "output_tokens")
    return replace(
        total,
        first_request=min(total.first_request, one.first_request),
        **{name: getattr(total, name) + getattr(one, name) for name in sums},
    )


def _keep(row: dict[str, Any]) -> dict[str, Any]:
    return row


def _bound_restarts(processor: Any, restarts: int) -> None:
    """By default Ray Data restarts an engine without limit; only the stage object can change that."""
    for name in processor.list_stage_names():
        if "Engine" in name:
            processor.get_stage_by_name(name).map_batches_kwargs["max_task_retries"] = restarts
