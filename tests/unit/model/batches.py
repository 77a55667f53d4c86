# SPDX-License-Identifier: Apache-2.0
"""A batch of the Batch API, its servers, its task and its jobs: each call of the storage is a step.

Server, task and the watch of the job are the real ones; what a job asks and publishes is told in short.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.dags.operators import LATE, ServedBatchOperator
from airflow_provider_raybatch.batch_api.dags.running import RunningBatch
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.server.upkeep import Upkeep, cancelled
from airflow_provider_raybatch.batch_api.store.ending import PUBLISHING
from airflow_provider_raybatch.batch_api.store.records import BatchEnd, BatchRecord, BatchState, StoredPiece
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.batch_api.store.validation import FileLimits
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException, for_airflow
from tests.support.airflow_tasks import Store
from tests.support.batch_api import line
from tests.support.batch_runs import RunsOfTests

from .batch_job import BATCH, ROWS, Disk, Job
from .batch_standing import SECRET, Standing, standing_of
from .job import Killed
from .process import Wrong

RETRIES = 4
START = 1_800_000_000.0
WINDOW = 3600.0


class World:
    """A batch whose DAG run begins.

    :ivar now: the time.
    :ivar token: of the task's run, which a clear renews.
    :ivar dag_run: its state.
    """

    def __init__(self) -> None:
        self.disk = Disk()
        self.now = START
        self.runs = RunsOfTests()
        self.upkeep = Upkeep(interval=0)
        self.operator = _OPERATOR
        self.token, self.tries, self.jobs = 0, 0, 0
        self.dag_run = "running"
        self.notes = Store()
        self.rank, self.counts = 0, (0, 0, 0)
        self.end: BatchEnd | None = None
        self._checked: dict[str, bytes] = {}
        content = b"".join(json.dumps(line(row)).encode() + b"\n" for row in range(ROWS))
        piece = StoredPiece(path="files/input/content.jsonl", bytes=len(content))
        self.disk.write(piece.path, content)
        self.record = self.store.add_batch(
            BatchRecord(
                id=BATCH, owner="ann", dag_id="batches_small", model="small", endpoint="/v1/chat/completions",
                input_file_id=f"file-{'0' * 32}", input=[piece], created_at=START,
                expires_at=START + WINDOW, outputs_expire_after=1e6,
            )
        )  # fmt: skip
        self.runs.trigger("batches_small", BATCH, None, "small")  # type: ignore[arg-type]
        self.store.mark_triggered(BATCH, START)

    @property
    def store(self) -> BatchStore:
        """The store of a process that has just begun."""
        return BatchStore(self.disk, SECRET)

    @property
    def state(self) -> BatchState:
        state = self.store.state(BATCH)
        assert state is not None
        return state

    # Servers.

    def cancel(self) -> None:
        """Let the owner cancel the batch; the server may be killed."""
        with contextlib.suppress(Killed, OpenAiError):
            cancelled(self.store, self.state, self.runs, self.upkeep)

    def look(self) -> None:
        """Let the owner look at the batch; the server may be killed."""
        with contextlib.suppress(Killed):
            self.upkeep.looked_after(self.store, self.state, self.runs)

    # Airflow.

    def run(self) -> None:
        """Make attempts until the DAG run is over."""
        while self.dag_run == "running":
            self.tries += 1
            assert self.tries < 40, "it is retried for ever"
            is_last = self.tries > RETRIES
            try:
                self._attempt(is_last)
            except RayBatchFailException:
                self.over("failed")
            except (Killed, RayBatchException):
                if is_last:
                    self.over("failed")
            else:
                self.over("success")

    def over(self, state: str) -> None:
        """End the DAG run."""
        self.dag_run = state
        self.runs.over.add(BATCH)

    def clear(self) -> None:
        """Clear the DAG run, which may have ended."""
        self.token += 1
        self.tries = 0
        self.dag_run = "running"
        self.runs.over.discard(BATCH)

    def _attempt(self, is_last: bool) -> None:
        token = self.token
        batch = RunningBatch(self.store, self.record, None, FileLimits())
        ti = SimpleNamespace(max_tries=RETRIES + 10 * self.token)
        context: Any = {"ti": ti, "task_state_store": self.notes}
        fake = SimpleNamespace(
            ends_with=lambda error, policy: isinstance(error, RayBatchFailException) or is_last
        )
        with for_airflow():
            if batch.end_before_job() is not None:
                return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ServedBatchOperator, "_attempt", lambda *_: fake)
            self.operator._to_its_end(context, batch, lambda: self._job(token))

    def _job(self, token: int) -> dict[str, Any]:
        if token != self.token:  # as the check right before a job is submitted
            raise RayBatchException("Airflow has given this attempt up.", FailureClass.CANCELLED)
        self.jobs += 1
        try:
            with for_airflow():
                return {"manifest_uri": Job(self, self.jobs, token).run()}
        except Killed:
            raise RayBatchException("The driver died.", FailureClass.NODE_LOST) from None

    # What must hold.

    def check(self) -> None:
        """Check what must hold at every instant.

        :raises Wrong: it does not.
        """
        if self.disk.files == self._checked:
            return
        self._checked = dict(self.disk.files)
        try:
            self._check(standing_of(frozenset(self._checked.items())))
        except AssertionError as error:
            raise Wrong(str(error)) from error

    def _check(self, now: Standing) -> None:
        assert now.rank >= self.rank, f"{now.status} after rank {self.rank}"
        assert all(one >= old for one, old in zip(now.counts, self.counts, strict=True)), (
            f"{self.counts} became {now.counts}"
        )
        self.rank, self.counts = now.rank, now.counts
        if now.ended is not None:
            assert self.end in (None, now.ended), "there are two ends"
            self.end = now.ended

    def check_end(self) -> None:
        """Check what must hold when nothing runs any more."""
        self.now += PUBLISHING + 1
        self.look()
        self.check()
        assert self.end is not None, f"it never ends: {self.state}"


Event = Callable[[World], Any]


def cancel(world: World) -> None:
    """The owner cancels it."""
    world.cancel()


def look(world: World) -> None:
    """The owner looks at it, after a while in which nothing moved."""
    world.now += PUBLISHING + 1
    world.look()


def expire(world: World) -> None:
    """Its window ends."""
    world.now = max(world.now, world.record.expires_at + 1)


def be_late(world: World) -> None:
    """Its window has ended long ago."""
    world.now = max(world.now, world.record.expires_at + LATE + 1)


def kill(world: World) -> None:
    """The process that works dies."""
    raise Killed


def freeze(world: World) -> None:
    """The process that works is taken for dead; it goes on when others have done all."""
    world.run()


def mark_failed(world: World) -> None:
    """Someone marks the DAG run as failed, and the owner looks; what works goes on for a while."""
    if world.dag_run == "running":
        world.over("failed")
    look(world)


def clear(world: World) -> None:
    """Someone clears the DAG run; what works goes on later."""
    world.clear()
    world.run()


EVENTS: tuple[Event, ...] = (cancel, look, expire, be_late, kill, freeze, mark_failed, clear)


def played(*events: tuple[int, Event]) -> int:
    """Play a batch with events before some of its steps; returns how many steps it took.

    Nonces are numbers, so that equal events leave equal files.
    """
    steps, left, nonces = 0, list(events), itertools.count()

    def before(call: str) -> None:
        nonlocal steps
        world.check()
        steps += 1
        if left and steps > left[0][0]:
            left.pop(0)[1](world)
            world.check()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_hex", lambda size: f"{next(nonces):0{2 * size}x}")
        world = World()
        patch.setattr("time.time", lambda: world.now)
        world.disk.before = before
        world.run()
        with world.disk.unstepped():
            world.check_end()
    return steps


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the logs of thousands of batches."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


class _Silent:
    def info(self, *_: object) -> None: ...

    warning = error = info


class _Operator(ServedBatchOperator):
    log = _Silent()  # type: ignore[assignment]


_OPERATOR = _Operator(task_id="answer", served_model_name="small", engine="echo")
