# SPDX-License-Identifier: Apache-2.0
"""The warm engines of a cluster: which one a job can use, their actors by name, and the state of each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.job.planning.plan import Plan

NAMESPACE = "raybatch"
"""Ray's namespace of their actors."""
_PREFIX, _MAKER_PREFIX = "warm-engine", "makes-warm-engines"
_ANSWER_SECONDS = 0.5
_SILENT = 30.0
"""Seconds after which an actor that has never answered counts as waiting for room on the cluster."""


@dataclass(frozen=True)
class WarmEngineState:
    """State of a warm engine. One that is neither free nor used nor ending starts, or is about to be idle.

    :param title: what it is, for people.
    :param since: seconds for which it has had no holder; 0 if it has one.
    :param ends_in: seconds until it ends, if it is not taken.
    :param node: id of its node.
    :param amounts: Ray's resources that it holds, by name.
    :param reserved_for: the maker whose job alone can take it, empty for any.
    """

    title: str
    is_free: bool
    is_ending: bool
    since: float
    ends_in: float
    node: str
    amounts: dict[str, float]
    reserved_for: str = ""
    is_used: bool = False

    def is_free_for(self, maker: str) -> bool:
        """Whether the job of this maker can take it."""
        return self.is_free and self.reserved_for in {"", maker}


def name_of(key: str, model: str, maker: str, number: int) -> str:
    """Name of the actor, which Ray's dashboard shows."""
    return f"{_PREFIX}:{key}:{model}:{maker}:{number}"


def maker_name(maker: str) -> str:
    """Name of the actor that makes engines for a job, and ends with it.

    :param maker: 8 hex digits of its own.
    """
    return f"{_MAKER_PREFIX}:{maker}"


@dataclass
class _Listed:
    actor: Any
    since: float
    """When it was found, in seconds of the clock."""
    answer: Any
    state: WarmEngineState | None = None
    has_answered: bool = False

    def ask(self) -> None:
        self.answer, self.state = self.actor.state.remote(), None

    def hear(self) -> None:
        self.state, self.has_answered = ray.get(self.answer), True


@dataclass
class WarmEngineRegistry:
    """Asks warm engines for their states. One that has not answered is not asked again.

    :param key: only engines of this key; by default all.
    :ivar ownerless: names of those that have never answered, and whose maker is gone.
    """

    key: str | None = None
    clock: Callable[[], float] = time.monotonic
    ownerless: set[str] = field(default_factory=set)
    _listed: dict[str, _Listed] = field(default_factory=dict)

    def states(self) -> dict[str, WarmEngineState | None]:
        """State of each engine by name, ``None`` if it does not answer at once.

        Ends those that wait for room, for a job that is gone.
        """
        there, makers = _named()
        names = {name for name in there if self.key is None or name.split(":")[1] == self.key}
        for name in self._listed.keys() - names:
            del self._listed[name]
        for name in names - self._listed.keys():
            with contextlib.suppress(ValueError):  # it has ended meanwhile
                actor = ray.get_actor(name, namespace=NAMESPACE)
                self._listed[name] = _Listed(actor, self.clock(), actor.state.remote())
        self._hear()
        self.ownerless = {
            name
            for name, one in self._listed.items()
            if not one.has_answered and name.rsplit(":", 2)[1] not in makers  # a model's name may have colons
        }
        for name in self.ownerless:
            if self.clock() - self._listed[name].since >= _SILENT:
                ray.kill(self._listed[name].actor)
        return {name: one.state for name, one in self._listed.items()}

    def actor(self, name: str) -> Any:
        """Handle of an engine that :meth:`states` has listed."""
        return self._listed[name].actor

    def _hear(self) -> None:
        for one in self._listed.values():
            if one.state is not None:
                one.ask()
        names = {one.answer: name for name, one in self._listed.items()}
        if not names:
            return
        for answer in ray.wait(list(names), num_returns=len(names), timeout=_ANSWER_SECONDS)[0]:
            try:
                self._listed[names[answer]].hear()
            except ray.exceptions.RayError:  # it has ended meanwhile
                del self._listed[names[answer]]


def _named() -> tuple[set[str], set[str]]:
    """Names of warm engines, and of the makers that are there."""
    names = {
        found["name"]
        for found in ray.util.list_named_actors(all_namespaces=True)
        if found["namespace"] == NAMESPACE
    }
    engines = {name for name in names if name.startswith(f"{_PREFIX}:")}
    makers = {name.split(":")[1] for name in names if name.startswith(f"{_MAKER_PREFIX}:")}
    return engines, makers


_OF_THE_JOB = ("working_dir", "_ray_commit")
"""Fields of a runtime environment that differ from job to job: its spec, and what Ray adds."""
_LONGEST_MODEL = 60


@dataclass(frozen=True)
class EngineKey:
    """The engine that a job wants.

    :param digest: of all that decides an engine and its owner, but the model's files: these are compared when
        the engine is opened.
    :param title: what it is, for people.
    :param seconds: for which it waits for its next holder at the end of the job.
    """

    digest: str
    title: str
    model: str
    gpus: float
    accelerator_type: str | None
    seconds: float


def key_of(
    spec: BatchInferenceSpec, environment: Mapping[str, SecretStr], plan: Plan, seconds: float
) -> EngineKey:
    """The key of the engines that the replicas of a job want.

    :param environment: variables of the engine's processes. Engines with other credentials are others'.
    :param seconds: see :class:`EngineKey`.
    """
    task = spec.submission.task if spec.submission is not None else None
    runtime_env = ray.get_runtime_context().runtime_env
    deciding = [
        task.namespace if task is not None else "",
        [spec.engine, spec.model, spec.engine_args, spec.model_task],
        [plan.gpus, plan.accelerator_type],
        {name: value for name, value in dict(runtime_env).items() if name not in _OF_THE_JOB},
        {name: value.get_secret_value() for name, value in environment.items()},
        # An engine gets the adapters of each job, so their number decides, for which it has room.
        len(spec.adapter_locations),
    ]
    model = (spec.model or spec.engine).rstrip("/").rsplit("/", 1)[-1][-_LONGEST_MODEL:]
    return EngineKey(
        digest=json_digest(deciding, default=str),
        title=f"{model}, made by {task.dag_id}.{task.task_id}" if task is not None else model,
        model=model,
        gpus=plan.gpus,
        accelerator_type=plan.accelerator_type,
        seconds=seconds,
    )
