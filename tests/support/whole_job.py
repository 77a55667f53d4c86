# SPDX-License-Identifier: Apache-2.0
"""A whole job in this process: the real `job.run` with one replica and no cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.manifest import Summary
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.job.engine import echo
from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.monitor.replica_progress import Reporter
from airflow_provider_raybatch.job.phases import driver as run_module
from airflow_provider_raybatch.job.phases import publishing, reusing
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.plan import ClusterView, Plan
from airflow_provider_raybatch.job.preflight import ready
from airflow_provider_raybatch.job.replica import replica as replica_module
from airflow_provider_raybatch.job.replica import row_images
from airflow_provider_raybatch.job.replica import worker as worker_module
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.job.replica.replica import Replica
from airflow_provider_raybatch.job.replica.worker import ReplicaWorker
from airflow_provider_raybatch.job.row_order import rows_to_do
from airflow_provider_raybatch.job.row_order.rows_to_do import Input
from airflow_provider_raybatch.job.run import supervision
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.run.watch import Watch
from airflow_provider_raybatch.job.work import CheckedModel, Job, Ran, in_sequence
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.reading import as_jsonl
from tests.support.replicas import Handle, in_no_actor
from tests.support.replicas import work as ticket
from tests.support.scripted import ProcessEndedError
from tests.support.simulated import SimulatedEngine
from tests.support.specs import asking, submitted


def infer(task: Any, **changed: Any) -> Summary:
    """Run the batch inference of an operator, some of whose arguments are changed, as a whole job."""
    from airflow_provider_raybatch.argument_fields import fields_of
    from airflow_provider_raybatch.operators.arguments import spec_of_fields
    from airflow_provider_raybatch.storage.folder import folder

    spec = spec_of_fields({**fields_of(task.arguments()), **fields_of(changed)})
    document = spec.model_dump(mode="json", exclude={"submission", "schema_version"})
    (source,) = document.pop("source")
    return attempt(folder(spec.destination), 0, source, **document)


def without_cluster(patch: pytest.MonkeyPatch) -> None:
    """Replace a job's calls to Ray; its echo can do what tests of models need."""
    in_no_actor(patch)
    patch.setattr(echo, "EchoEngine", SimulatedEngine)
    patch.setattr(ray, "init", lambda **_: None)  # Ray calls it where a call needs a cluster
    patch.setattr(ray, "get", lambda reference, timeout=None: reference)
    patch.setattr(Reporter, "_run", lambda *_: None)
    patch.setattr(cluster_view, "view", lambda: ClusterView(({"CPU": 2.0},)))
    for module in (replica_module, worker_module):
        patch.setattr(module, "os", SimpleNamespace(getpid=os.getpid, _exit=_end))
    for module in (row_images, rows_to_do):
        patch.setattr(module, "ray", in_threads())
    patch.setattr(ready, "apart_if_users_code", lambda spec, function: function)
    patch.setattr(reusing, "keys_over_the_cluster", in_sequence)
    patch.setattr(publishing, "publish_over_the_cluster", in_sequence)
    patch.setattr(publishing, "apart_for", lambda _, function, *given, **named: function(*given, **named))
    patch.setattr(Launch, "early", lambda *_: None)
    patch.setattr(
        Launch, "replicas", lambda launch, job, sizing, work: Todo(**vars(work), model=launch._model)
    )
    patch.setattr(supervision, "run", one_replica)


def _end(status: int) -> None:
    raise ProcessEndedError


@contextmanager
def ended_while_writing(after: int, error: BaseException | None = None, step: int = 0) -> Iterator[None]:
    """End the replica once, instead of the write that follows so many writes of its.

    :param step: writes count from the first on that has answers of this step or a later one.
    :param error: what the replica, and so the job, fails with; by default its process is killed, and
        another goes on.
    """
    flush, writes = ReplicaWorker._flush, 0

    async def ends(worker: ReplicaWorker) -> None:
        nonlocal writes
        writes += writes > 0 or any(row.step >= step for row in worker._inflight.landed)
        if writes == after + 1:
            raise error or ProcessEndedError
        await flush(worker)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplicaWorker, "_flush", ends)
        yield
    assert writes > after


def in_threads() -> SimpleNamespace:
    """What loading images and bringing rows together ask of Ray; each task is a thread's."""

    def remote(**_: Any) -> Callable[[Callable[..., Any]], SimpleNamespace]:
        return lambda function: SimpleNamespace(remote=lambda *given: asyncio.to_thread(function, *given))

    return SimpleNamespace(
        put=lambda value: value,
        cluster_resources=lambda: {"CPU": 2.0, "object_store_memory": 2.0**30},
        remote=remote,
        exceptions=ray.exceptions,
    )


@dataclass(frozen=True)
class Todo(Input):
    """The rows to do, with the model that the driver has checked, which is not of one step alone."""

    model: CheckedModel | None = None


def one_replica(job: Job, plan: Plan, work: Input, *_: Any) -> Ran:
    coordinator, watch = Coordinator(job.folder), Watch()
    coordinator.begin(work, job.part_folders, plan.fewest, ())
    handle = Handle(coordinator, job, plan, work.model if isinstance(work, Todo) else None)
    while True:
        replica = Replica(job.spec, job.environment, handle, spans_nodes=False)
        try:
            asyncio.run(ticket(replica))
            break
        except asyncio.CancelledError:  # its process has ended, and Ray starts another
            replica.reporter.send()
    reports, news = coordinator.news()[:2]
    for at, done in news:
        watch.add(done, at)
    return replace(watch.ran(coordinator.engine() or EngineInfo()), reports=reports)


def numbered(path: Path, rows: int) -> str:
    """Write rows with the ids from 0 on; return their source."""
    path.write_bytes(as_jsonl([{"id": number} for number in range(rows)]))
    return str(path)


def attempt(
    place: Folder, number: int, source: str, /, emitted: list[events.Event] | None = None, **fields: Any
) -> Summary:
    """Run a submission's job, from preflight to commit.

    :param source: a file.
    :param emitted: gets the job's events.
    """
    spec = submitted(
        number,
        **{
            "source": [source],
            **asking("Say {row.id}", fields),
            "engine": "echo",
            "batch_size": 3,
            "destination": place.uri,
            "rows_per_part": 5,
            **fields,
        },
    )
    emitted = [] if emitted is None else emitted
    secrets = Secrets(aws=place.credentials) if isinstance(place, S3Folder) else None
    summary = run_module.run(spec, spec.submission, emitted.append, secrets)
    assert [event.summary for event in emitted if isinstance(event, events.Committed)] == [summary]
    return summary


def dying_attempt(place: Folder, number: int, source: str, /) -> str:
    """Run a job that dies when all rows are written and none is published; return what it says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "prepare", lambda *_: 1 / 0)
        with pytest.raises(RaybatchError) as caught:
            attempt(place, number, source)
    return str(caught.value)
