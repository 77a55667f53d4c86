# SPDX-License-Identifier: Apache-2.0
"""What each replica reports to the coordinator, and how."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_raybatch.job.failures.diagnosis import diagnose

_REPORT_TIMEOUT = 30.0


@dataclass
class ReplicaProgress:
    """A replica's progress, cumulative since its process started.

    :param state: ``waiting`` for a warm engine, ``starting``, ``ready``, ``drained`` after an order to end,
        or ``ended`` if another process has replaced it, or no rows were left for it.
    :param rows: that were answered or failed before the engine; another process may repeat them.
    :param written: of them, rows in a part, which are never repeated.
    :param errors: of the written rows, those that failed: a lower bound if the process ends suddenly.
    :param killers: of the errors, rows that crash the engine.
    :param answered: rows whose answer is in a part, by the number of the step; the last one's are `written`.
    :param special: of the written rows, those whose text has special tokens; `truncated`, those with a
        prompt that was cut.
    :param tokens_in_flight: tokens so far of requests without an answer.
    :param rows_in_flight: rows in the engine.
    :param loaded: grows while it loads its model, see
        :mod:`~airflow_provider_raybatch.job.warm_engines.source`.
    :param started: epoch seconds at which its process began to start the engine, or got a warm one.
    :param startup_seconds: from then until the engine was ready.
    :param imported: epoch seconds at which the engine was imported and the model was checked.
    :param first_request: epoch seconds, 0 before it; so is `last_answer`, which is the latest one.
    :param cpu_seconds: of its own process, since the engine was ready.
    :param gpus: ids of its GPUs on its node; empty without, or where they lie on several nodes.
    :param gpu_utilization: mean of NVML's samples since the engine was ready, ``None`` without an NVIDIA GPU.
    :param gpu_share: of its GPU, which other engines have the rest of; ``None`` where it has whole ones.
    :param is_warm: whether its GPUs are those of a warm engine, which outlives it.
    :param nodes: ids of the nodes of its GPUs, one each; empty where all are on `node`.
    :param failure: failure class and message of what ended it.
    :param seen: epoch seconds of its latest report, by the coordinator's clock.
    :param placed: of its first report since it has its GPUs, likewise; 0 before.
    :param held_until: when it gave them back, or its process was gone, likewise; 0 before.
    """

    replica: str
    node: str
    state: str = "starting"
    rows: int = 0
    written: int = 0
    errors: int = 0
    killers: int = 0
    special: int = 0
    truncated: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tokens_in_flight: int = 0
    rows_in_flight: int = 0
    loaded: int = 0
    started: float = 0.0
    startup_seconds: float = 0.0
    imported: float = 0.0
    first_request: float = 0.0
    last_answer: float = 0.0
    cpu_seconds: float = 0.0
    answered: dict[int, int] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    gpu_utilization: float | None = None
    gpu_share: float | None = None
    is_warm: bool = False
    nodes: list[str] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    seen: float = 0.0
    placed: float = 0.0
    held_until: float = 0.0

    @property
    def actor(self) -> str:
        """Id of its actor, which stays the same when Ray starts its process again."""
        return self.replica.rsplit("-", 2)[0]

    @property
    def progress(self) -> tuple[int, ...]:
        """What only grows, to tell an earlier report from a later one."""
        return self.rows, self.written, sum(self.answered.values())

    def answer(self, step: int, rows: int) -> None:
        """So many rows have an answer of a step before the last one in a part."""
        self.answered = {**self.answered, step: self.answered.get(step, 0) + rows}  # copies keep theirs

    def await_engine(self) -> None:
        """It waits for a warm engine."""
        self.is_warm, self.state = True, "waiting"

    def take(self, gpus: list[str], nodes: Sequence[str] = ()) -> None:
        """Its engine has these GPUs; `nodes` are theirs where the engine is a warm one."""
        self.gpus, self.nodes = gpus, [*nodes] or self.nodes

    def start(self) -> None:
        """It has got a warm engine, and opens it now."""
        self.state, self.started = "starting", time.time()

    def ready(self) -> None:
        """Its engine is ready."""
        self.startup_seconds, self.state = round(time.time() - self.started, 2), "ready"

    def end(self) -> None:
        """Its process does nothing more."""
        self.state = "ended"

    @property
    def has_gpus(self) -> bool:
        """Whether it has its GPUs, if it lives: with an engine of its own, as long as its actor."""
        return not self.is_warm or self.state not in {"waiting", "ended"}

    def heard(self, before: ReplicaProgress | None, now: float) -> ReplicaProgress:
        """This report as the coordinator keeps it.

        :param before: the report that this one follows.
        """
        placed, held_until = (0.0, 0.0) if before is None else (before.placed, before.held_until)
        if self.has_gpus:
            return replace(self, seen=now, placed=placed or now, held_until=0.0)
        return replace(self, seen=now, placed=placed, held_until=placed and (held_until or now))

    def timed_as(self, other: ReplicaProgress) -> ReplicaProgress:
        """With the times of the coordinator's clock, which a report that came with parts lacks."""
        return replace(self, seen=other.seen, placed=other.placed, held_until=other.held_until)

    def gone(self) -> ReplicaProgress:
        """The last report of a process that is gone, and whose unfinished answers are lost."""
        return replace(
            self,
            state="ended",
            output_tokens=self.output_tokens + self.tokens_in_flight,
            tokens_in_flight=0,
            held_until=self.placed and (self.held_until or self.seen),
        )


class Reporter:
    """Sends a replica's progress every `interval` seconds, from a thread of its own.

    :param coordinator: handle of the coordinator.
    :param sample: called before each report, to bring it up to date.
    :param drain: called when the coordinator orders replicas to end.
    :param ask: called when it orders this replica to ask for work now.
    """

    def __init__(
        self,
        coordinator: Any,
        progress: ReplicaProgress,
        sample: Callable[[], None],
        drain: Callable[[], None],
        ask: Callable[[], None],
        interval: float = 1.0,
    ) -> None:
        self._coordinator = coordinator
        self._progress = progress
        self._sample, self._drain, self._ask = sample, drain, ask
        self._interval = interval
        self.send()
        threading.Thread(target=self._run, name="raybatch-reporter", daemon=True).start()

    def send(self) -> Any:
        """Report now, without waiting. Returns a reference to the answer."""
        return self._coordinator.report.remote(self._progress)

    @contextlib.contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Report what is raised inside: Ray forwards only part of an actor's exception, as text."""
        try:
            yield
        except Exception as error:
            failure_class, sentence = diagnose(error)
            self._progress.failure = (failure_class.value, sentence)
            self._answer()
            raise

    def _answer(self) -> Any:
        import ray  # where reports of a run are read, there may be none

        return ray.get(self.send(), timeout=_REPORT_TIMEOUT)

    def _run(self) -> None:
        while True:
            time.sleep(self._interval)
            self._sample()
            # The next report replaces a lost one. If the coordinator is gone, the driver is, too.
            with contextlib.suppress(Exception):
                drains, asks = self._answer()
                if drains:
                    self._drain()
                if asks:
                    self._ask()
