# SPDX-License-Identifier: Apache-2.0
"""CPU work spread over the cluster as Ray tasks: they ask for no CPU, so nothing can keep them waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.prompt import FunctionPrompt
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.output.commit import in_sequence
from airflow_provider_raybatch.job.output.publish import Published, Range, Target, publish
from airflow_provider_raybatch.job.reuse import row_keys
from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys
from airflow_provider_raybatch.job.work import Job, WorkItem

T = TypeVar("T")

_PUBLISHERS = 8
_MOST_KEYERS = 64


def publish_over_the_cluster(found: Sequence[Range], target: Target) -> Iterable[Published]:
    """See :data:`~airflow_provider_raybatch.job.output.commit.Publish`."""
    if len(found) <= 1:
        return in_sequence(found, target)
    return _spread(publish, found, target, _PUBLISHERS)


def keys_over_the_cluster(
    function: Callable[[Job, Sequence[WorkItem]], RequestKeys],
    job: Job,
    groups: Sequence[Sequence[WorkItem]],
) -> Iterable[RequestKeys]:
    """See :data:`~airflow_provider_raybatch.job.reuse.row_keys.Mapper`."""
    if len(groups) <= 1 and not _calls_users_code(job.spec):
        return row_keys.in_sequence(function, job, groups)

    def swapped(group: Sequence[WorkItem], job: Job) -> RequestKeys:
        return function(job, group)

    at_once = int(min(_MOST_KEYERS, max(1, ray.cluster_resources().get("CPU", 1))))
    return _spread(swapped, groups, job, at_once)


def apart_if_users_code(spec: BatchInferenceSpec, function: Callable[..., T]) -> Callable[..., T]:
    """`function`, in a process of its own on this node where it calls a prompt function.

    The driver's memory holds the job's key, and its output is the job's log: no code of users may reach them.
    """
    if not _calls_users_code(spec):
        return function
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    task = ray.remote(num_cpus=0, scheduling_strategy=here)(function)

    def call(*arguments: Any) -> T:
        try:
            made: T = ray.get(task.remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RaybatchError):
                raise error.cause from None
            raise
        return made

    return call


def _calls_users_code(spec: BatchInferenceSpec) -> bool:
    return isinstance(spec.prompt, FunctionPrompt)


def _spread(
    function: Callable[[Any, Any], T], items: Sequence[Any], shared: Any, at_once: int
) -> Iterable[T]:
    """`function(item, shared)` of each item, in their order, a few at once."""
    task = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(function)
    given = ray.put(shared)
    running: deque[Any] = deque()
    for item in items:
        running.append(task.remote(item, given))
        if len(running) >= at_once:
            yield ray.get(running.popleft())
    while running:
        yield ray.get(running.popleft())
