# SPDX-License-Identifier: Apache-2.0
"""CPU work spread over the cluster as Ray tasks. They request no CPU, so they never wait for one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.control.process import freeze_gc_heap
from airflow_provider_raybatch.job.failures.public_reasons import guarded_task
from airflow_provider_raybatch.job.row_order import buckets
from airflow_provider_raybatch.job.work import Job, WorkItem

T = TypeVar("T")

_MOST_AT_ONCE = 64
_SECONDS_HERE = 1.0
_WORTH_TASKS = 5.0
"""Seconds of work that must be left after the first: a worker process costs seconds of CPU to start."""


def apart_if_users_code(spec: BatchInferenceSpec, function: Callable[..., T]) -> Callable[..., T]:
    """`function`; if it calls a user's code, in a process of its own on this node.

    A user's code must not reach the job's key in the driver's memory, nor write into the job's log.
    """
    if not spec.functions:
        return function
    task = ray.remote(**on_this_node())(guarded_task(function, spec.shows_rows))
    code = users_code(**spec.functions)

    def call(*arguments: Any) -> T:
        try:
            made: T = ray.get(task.remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RaybatchError):
                raise error.cause from None
            raise
        except ray.exceptions.WorkerCrashedError as error:
            raise ended_its_process(code) from error
        return made

    return call


def apart_for(seconds: float, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """`function` of these arguments in a process of its own on this node.

    :raises ray.exceptions.GetTimeoutError: it took longer than `seconds`.
    """
    task = ray.remote(max_retries=0, **on_this_node())(function)
    reference = task.remote(*arguments, **named)
    try:
        made: T = ray.get(reference, timeout=seconds)
    except ray.exceptions.GetTimeoutError:
        ray.cancel(reference, force=True)
        raise
    return made


def users_code(**paths: str | None) -> str:
    """The user's functions that a task calls, in words; empty if it calls none.

    :param paths: ``module:function`` by the argument that names it.
    """
    return " or ".join(f"{argument}: {path!r}" for argument, path in paths.items() if path is not None)


def ended_its_process(code: str) -> RaybatchError:
    """The error after Ray has called it again, so the node's loss is not the reason."""
    return RaybatchError(
        f"{code} ended the process that called it, each time (os._exit, a crash of native code, or more "
        "memory than the node has); let it raise an exception instead.",
        FailureClass.USER_ERROR,
    )


def on_this_node() -> dict[str, Any]:
    """Ray's options for what runs beside the driver, whatever else runs there."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return {"num_cpus": 0, "scheduling_strategy": here}


def parallel_map(
    function: Callable[..., T],
    items: Sequence[Any],
    shared: Any,
    at_once: int = 0,
    small: bool = False,
    **code: str | None,
) -> Iterator[T]:
    """`function(item, shared)` for each item, in order: a few at a time in tasks.

    A single item is done in this process, and small ones are until that takes longer; never what calls a
    user's code.

    :param at_once: tasks that run concurrently, at most; by default one a CPU of the cluster.
    :param small: whether this process has the memory for any item.
    :param code: see :func:`users_code`.
    :raises RaybatchError: a user's function ends its process.
    """
    called, began, done = users_code(**code), time.monotonic(), 0
    while not called and (small or len(items) == 1) and done < len(items):
        spent, left = time.monotonic() - began, len(items) - done
        if left > 1 and spent >= _SECONDS_HERE and spent / done * left > _WORTH_TASKS:
            break
        yield function(items[done], shared)
        done += 1
    if done < len(items):
        for made, _ in _spread(function, items[done:], shared, 1, called, at_once):
            yield made


def keys_over_the_cluster(function: Callable[..., T], groups: Sequence[Any], job: Job) -> Iterable[T]:
    """See :data:`~airflow_provider_raybatch.job.work.ParallelMap`."""
    guarded = guarded_task(function, job.spec.shows_rows)
    return parallel_map(guarded, groups, job, prompt_function=job.spec.prompt_function)


def cut_in_tasks(groups: Sequence[Sequence[WorkItem]], cut: buckets.Cut) -> Iterable[tuple[Any, list[Any]]]:
    """See :data:`~airflow_provider_raybatch.job.row_order.rows_to_do.CutInTasks`."""
    code = users_code(prompt_function=cut.job.spec.prompt_function)
    slices = guarded_task(buckets.slices, cut.job.spec.shows_rows)
    return _spread(slices, groups, cut, 1 + cut.grouping.buckets, code)


def _with_frozen_heap(function: Callable[..., T]) -> Callable[..., T]:
    @wraps(function)
    def call(*arguments: Any) -> T:
        freeze_gc_heap()
        return function(*arguments)

    return call


def _spread(
    function: Callable[..., Any], items: Sequence[Any], shared: Any, parts: int, code: str, at_once: int = 0
) -> Iterator[tuple[Any, list[Any]]]:
    """For each item the first value that `function` returns, and references to the others.

    :param parts: how many values it returns.
    """
    frozen = _with_frozen_heap(function)
    task = ray.remote(num_cpus=0, scheduling_strategy="SPREAD", num_returns=parts)(frozen)
    given = ray.put(shared)
    at_once = at_once or int(min(_MOST_AT_ONCE, max(1, ray.cluster_resources().get("CPU", 1))))
    running: deque[list[Any]] = deque()

    def oldest() -> tuple[Any, list[Any]]:
        first, *others = running.popleft()
        try:
            return ray.get(first), others
        except ray.exceptions.WorkerCrashedError as error:
            if not code:
                raise
            raise ended_its_process(code) from error

    for item in items:
        returned = task.remote(item, given)
        running.append(returned if parts > 1 else [returned])
        if len(running) >= at_once:
            yield oldest()
    while running:
        yield oldest()
