# SPDX-License-Identifier: Apache-2.0
"""How a replica comes to a kept engine: it takes one that idles and is like what it wants, or makes one."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.contract.digest import json_digest
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.execution.kept.keeper import KeptEngine, User
from airflow_provider_raybatch.job.execution.kept.way import KeptFrontEnd
from airflow_provider_raybatch.job.planning.plan import Plan

NAMESPACE = "raybatch"
"""Ray's namespace of the actors."""
_PREFIX = "kept-engine"
_ANSWER_SECONDS = 2.0
_LOOK_AGAIN, _LONGEST_PAUSE = 1.0, 5.0
"""Seconds between two looks for an engine that has become free: a thousand replicas may wait for room."""
_OF_THE_JOB = ("working_dir", "_ray_commit")
"""Fields of a runtime environment that differ from job to job: its spec, and what Ray adds."""
_LONGEST_MODEL = 60


@dataclass(frozen=True)
class Wanted:
    """The engine that a job wants.

    :param key: over all that decides an engine and whose it is, but for the model's files, which are compared
        when it is opened.
    :param seconds: for which it waits for its next user at the end of the job.
    """

    key: str
    title: str
    engine: str
    model: str
    gpus: int
    accelerator_type: str | None
    seconds: float


def wanted(spec: BatchInferenceSpec, environment: Mapping[str, SecretStr], plan: Plan) -> Wanted | None:
    """What the replicas of a job want; ``None`` if its engines are not to be kept.

    :param environment: variables of the engine's processes. Credentials are among them, so an engine that was
        started with others is another's.
    """
    if spec.keep_warm is None or plan.spans_nodes:
        return None
    task = spec.submission.task if spec.submission is not None else None
    runtime_env = ray.get_runtime_context().runtime_env
    deciding = [
        task.namespace if task is not None else "",
        [spec.engine, spec.model, spec.engine_args],
        [plan.gpus, plan.accelerator_type],
        {name: value for name, value in dict(runtime_env).items() if name not in _OF_THE_JOB},
        {name: value.get_secret_value() for name, value in environment.items()},
    ]
    model = (spec.model or spec.engine).rstrip("/").rsplit("/", 1)[-1][-_LONGEST_MODEL:]
    return Wanted(
        key=json_digest(deciding, default=str),
        title=f"{model}, made by {task.dag_id}.{task.task_id}" if task is not None else model,
        engine=spec.engine,
        model=model,
        gpus=plan.gpus,
        accelerator_type=plan.accelerator_type,
        seconds=spec.keep_warm,
    )


def take(
    asked: Wanted, environment: dict[str, SecretStr], user: User, is_needed: Callable[[], bool]
) -> KeptFrontEnd | None:
    """Take an engine that idles, or make one, which waits for room on the cluster.

    :param is_needed: asked while it waits.
    :returns: the way to it; ``None`` if it is not needed any more.
    :raises RaybatchError: the one that was made has ended at its start.
    """
    made: Any = None
    answer: Any = None
    pause = _LOOK_AGAIN
    while True:
        for keeper in _free(asked.key):
            if _takes(keeper, user):
                if made is not None:
                    ray.kill(made)
                return KeptFrontEnd(keeper, user, asked.seconds)
        if made is None:
            made = _make(asked, user)
            answer = made.begin.remote(user, environment, asked.engine == "vllm")
        if ray.wait([answer], timeout=pause)[0]:
            try:
                ray.get(answer)
            except ray.exceptions.RayError as error:
                raise RaybatchError(
                    f"keep_warm: the engine's actor ended at its start ({type(error).__name__}); its log on "
                    "the cluster says why.",
                    FailureClass.ENGINE_DEAD,
                ) from error
            return KeptFrontEnd(made, user, asked.seconds)
        if not is_needed():
            ray.kill(made)
            return None
        pause = min(_LONGEST_PAUSE, 1.5 * pause)


def idles(asked: Wanted) -> bool:
    """Whether an engine like this waits for a user."""
    return bool(_free(asked.key))


def kept() -> Iterator[tuple[str, Any]]:
    """Name and handle of each kept engine of the cluster."""
    for found in ray.util.list_named_actors(all_namespaces=True):
        if found["namespace"] == NAMESPACE and found["name"].startswith(f"{_PREFIX}:"):
            with contextlib.suppress(ValueError):  # it has ended meanwhile
                yield found["name"], ray.get_actor(found["name"], namespace=NAMESPACE)


def _free(key: str) -> list[Any]:
    """Handles of engines that wait for a user."""
    states = {keeper.state.remote(): keeper for name, keeper in kept() if name.split(":")[1] == key}
    # Those that wait for room on the cluster do not answer.
    answered, _ = (
        ray.wait(list(states), num_returns=len(states), timeout=_ANSWER_SECONDS) if states else ([], [])
    )
    free = []
    for answer in answered:
        with contextlib.suppress(ray.exceptions.RayError):  # it has ended meanwhile
            if ray.get(answer)["is_free"]:
                free.append(states[answer])
    return free


def _takes(keeper: Any, user: User) -> bool:
    with contextlib.suppress(ray.exceptions.RayError):
        return bool(ray.get(keeper.take.remote(user)))
    return False


def _make(asked: Wanted, user: User) -> Any:
    options: dict[str, Any] = {"num_cpus": 0, "num_gpus": asked.gpus}
    if asked.accelerator_type:
        options["accelerator_type"] = asked.accelerator_type
    return (
        ray
        .remote(KeptEngine)
        .options(
            name=f"{_PREFIX}:{asked.key}:{asked.model}:{uuid.uuid4().hex[:8]}",
            namespace=NAMESPACE,
            lifetime="detached",
            max_concurrency=8,
            max_restarts=0,
            **options,
        )
        .remote(asked.title, user)
    )
