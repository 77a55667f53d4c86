# SPDX-License-Identifier: Apache-2.0
"""The actor that replicas ask for work, beside the driver: the pull queue, and what surrounds its decisions.

It looks up which chunk a row lies in, and hands the parts that replicas report to the driver. It takes a
process for lost when its actor starts another one or when it is silent (`membership.py`). Until it is known
what a lost process has written (`process_parts.py`), its rows stay with it: no finished row is asked again.

Replicas start while the driver still checks the job. They learn here which model to load, and later the job.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from airflow_provider_raybatch.job.control.process import freeze_gc_heap
from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.replica.membership import Membership
from airflow_provider_raybatch.job.replica.process_parts import LeftParts
from airflow_provider_raybatch.job.replica.remote_call import Answer, PendingCall, RemoteCall
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.row_order.rows_to_do import Input
from airflow_provider_raybatch.job.scheduling.claims import Claims
from airflow_provider_raybatch.job.scheduling.messages import Assignment, Begun, PullRequest
from airflow_provider_raybatch.job.scheduling.queue import PullQueue
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, SharedContents
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.job.warm_engines.source import OWN_ENGINES, EngineSource
from airflow_provider_raybatch.job.work import CheckedModel, Done
from airflow_provider_raybatch.storage.folder import Folder

_ALL = 2**62


class Coordinator:
    """The actor's class; `folder` is the destination."""

    def __init__(self, folder: Folder, source: EngineSource = OWN_ENGINES) -> None:
        self._left_parts = LeftParts(folder)
        self._engines = source.pool()
        self._model: CheckedModel | Literal[False] | None = None
        self._job: Any = None
        self._call = PendingCall()
        self._give_out(Input([], [], np.zeros(0, np.uint8)), [""], _ALL)
        self._membership = Membership()
        self._news: list[tuple[float, Done]] = []
        self._reported: dict[str, set[str]] = {}
        """Paths of the parts of each process that has rows."""
        self._answers: dict[str, list[tuple[int, Part]]] = {}
        """Of each process, its parts of earlier steps, each with the number of its step."""
        self._left_answers: list[tuple[int, Part]] = []
        """Those of processes that were lost: another may have to go on with their rows."""
        self._told: dict[str, int] = {}
        """How many of the latter each process knows."""
        self._claims = Claims()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="raybatch-earlier-answers")
        self._earlier: Future[list[tuple[Any, Keys]]] | None = None
        """What was answered before the job, until it is known."""
        self._draining, self._keeps_engines = False, True
        self._engine: EngineInfo | None = None

    def _give_out(self, work: Input, part_folders: Sequence[str], fewest: int) -> None:
        freeze_gc_heap()
        self._input = work
        self._part_folders = part_folders
        self._fewest = fewest
        self._pieces = work.pieces()
        self._queue = PullQueue(self._pieces)
        self._contents = SharedContents(self._queue.is_open)

    # Replicas.

    def start(self, actor: str, process: str, begun: Begun | None = None) -> int | None:
        """A replica's process starts. The one that its actor had before is gone.

        :param actor: stays the same when Ray starts its process again.
        :param begun: what the earlier process had begun, where it could be found.
        :returns: see :meth:`Membership.consecutive_failures`; ``None`` while it is not known what the earlier
            process has written: then this one asks again.
        """
        for earlier in self._membership.of_actor(actor):
            self._bury(earlier, begun)
        self._free_rows_of_lost()
        if self._left_parts.awaited_of(actor):
            return None
        self._membership.start(actor, process)
        if self._engines.has_engine(process):
            self._starts(process)
        return self._membership.consecutive_failures(actor)

    def engine_for(self, holder: Holder, node: str) -> Any:
        """The engine's actor for a replica, if there is one now."""
        actor = self._engines.engine_for(holder, node) if holder.process in self._membership else None
        if actor is not None:
            self._starts(holder.process)
        return actor

    def _starts(self, process: str) -> None:
        """A process has what its engine needs of the cluster."""
        self._call.heard_of(process)
        self._membership.starting.add(process)

    def is_needed(self, process: str, name: str = "") -> bool:
        """Whether a process that starts shall open its engine. If not, it counts as one that has left."""
        self._membership.named(process, name)
        needed = self._job is None or (
            not (self._queue.is_finished or self._draining)
            and (self._has_rows_for_another or self._membership.needed_beside(process) < self._fewest)
        )
        if not needed:
            self._membership.leaves(process)
        return needed

    def model(self, process: str = "") -> CheckedModel | RemoteCall | Literal[False] | None:
        """What engines load, ``None`` until it is checked, `False` for none; or a call for this process."""
        return self._call.for_process(process) or self._model

    def answer(self, process: str, returned: Any, error: Exception | None) -> None:
        """What the call's function has returned, or raised, in this process."""
        self._call.take(process, returned, error)

    def job(self) -> Any:
        """What `begin` was given for replicas; ``None`` until then, `False` if there is nothing to do."""
        return self._job

    def join(self, process: str, slots: int) -> None:
        """A replica's engine is ready for `slots` rows at once."""
        self._membership.require(process)
        self._membership.starting.discard(process)
        self._engines.joined(process)
        self._queue.join(process, slots, time.monotonic(), self._membership.is_suspect(process))

    def pull(self, process: str, report: PullRequest, done: Done | None = None) -> Assignment:
        """A replica reports what it has finished, and gets what it is to hold now.

        :param done: the parts of `report.finished`, if there are any.
        :raises StaleReplicaError: it was taken for lost.
        """
        self._membership.require(process)
        self._take(process, report, done)
        self._free_rows_of_lost()
        self._learn_earlier()
        self._queue.starting = len(self._membership.starting)
        self._queue.coming = self._engines.coming
        assignment = self._queue.pull(process, time.monotonic(), report)
        rows = np.concatenate([assignment.failed, assignment.rows])
        chunks = {piece: self._input.chunks[piece] for piece in self._pieces.split(rows)}
        self._contents.given(process, chunks, assignment.borrow)
        places, numbers = self._input.repetitions.among(rows)
        repetitions = dict(zip(rows[places].tolist(), numbers.tolist(), strict=True))
        answers = tuple(self._left_answers[self._told.get(process, 0) :])
        self._told[process] = len(self._left_answers)
        return replace(
            assignment,
            chunks=chunks,
            repetitions=repetitions,
            leaves=self._leaves(process),
            answers=answers,
            shared=self._claims.news(process),
            taken_over=self._claims.take_over(process, self._may_ask_for_lost),
            is_awaited=self._claims.is_awaited(process),
        )

    def claim(self, process: str, keys: Sequence[bytes]) -> list[Any]:
        """See :meth:`Claims.claim`; places are parts.

        :raises StaleReplicaError: it was taken for lost.
        """
        self._membership.require(process)
        return self._claims.claim(process, keys)

    def give_back(self, process: str, rows: Ordinals) -> tuple[int, ...]:
        """See :meth:`PullQueue.give_back`."""
        self._membership.require(process)
        return self._queue.give_back(process, rows)

    def unclaim(self, process: str, keys: Sequence[bytes]) -> None:
        """See :meth:`Claims.release`."""
        self._claims.release(process, keys)

    def share(self, process: str, contents: dict[int, list[Any]]) -> None:
        """A replica has put pieces into the object store: a reference each, none where it has lost it."""
        if process in self._membership:
            self._contents.put(process, contents)

    def content(self, piece: int) -> list[Any] | None:
        """See :meth:`SharedContents.get`."""
        return self._contents.get(piece)

    def fetched(self, process: str, pieces: Collection[int]) -> None:
        """A replica has the content of pieces that it was told to borrow."""
        self._contents.fetched(process, pieces)

    def leave(self, process: str) -> None:
        """A replica ends. It has written what it has finished, and begins nothing."""
        if process in self._membership and process in self._queue.replicas:
            self._left_answers += self._answers.pop(process, [])
            self._queue.leave(process)
            self._contents.gone(process)
            self._claims.gone(process)

    def lost(
        self, process: str, engine_died: bool, begun: Begun, report: PullRequest, done: Done | None
    ) -> None:
        """A replica's engine is gone, and it ends now: its last report."""
        if process in self._membership:
            self._take(process, report, done)
            if process in self._queue.replicas:
                self._queue.finish(process, report.finished)
            self._lose(process, self._end(process), engine_died, begun)

    def describe(self, engine: EngineInfo) -> None:
        """Keep the description of a replica's engine; sent once per process, since it may be large."""
        self._engine = engine

    def report(self, report: ReplicaProgress) -> tuple[bool, bool]:
        """A replica's progress, once a second.

        :returns: whether replicas must write their finished rows and end; and whether this one must ask for
            work now, to give rows back.
        """
        self._membership.hear(report)
        if report.replica in self._membership and report.state != "waiting":
            self._call.heard_of(report.replica)
        if report.state == "ended":
            self._engines.gone(report.replica)
        return self._draining, self._queue.wants(report.replica)

    # The driver.

    def load(self, model: CheckedModel) -> None:
        """Let engines start: the model is checked."""
        self._model = model

    def ask(self, call: RemoteCall | None) -> None:
        """Let one of the processes do a call; ``None`` takes it back."""
        self._call.put(call)

    def answered(self) -> tuple[bool, Answer | None]:
        """See :meth:`PendingCall.state`."""
        return self._call.state()

    def begin(self, work: Input, part_folders: Sequence[str], fewest: int, job: Any) -> None:
        """Give out the rows.

        :param part_folders: where this submission keeps the parts of each step, relative to the destination.
        :param fewest: replicas that stay while rows are left, also those that have none.
        :param job: what replicas need to know of the job: a reference to it and its plan, in a list.
        """
        self._give_out(work, part_folders, fewest)
        self._job = job
        if work.earlier is not None:
            self._claims.hold()
            self._earlier = self._threads.submit(list, work.earlier.places())

    def release(self) -> None:
        """Let replicas leave that have no rows: the job is refused, or has nothing to do."""
        self._model = self._job = False

    def close(self) -> bool:
        """Stop creating warm engines. Returns whether a replica still has one.

        If all rows are done and the replica count is fixed, engines still starting stay for the next job.
        """
        has_done_all = self._job is not None and self._queue.is_finished and not self._draining
        next_needs_them = has_done_all and self._fewest >= self._engines.most
        self._engines.close((self._model or None) if next_needs_them else None)
        return self._engines.has_given

    def engine(self) -> EngineInfo | None:
        """Description of the engine that started last."""
        return self._engine

    def drain(self, keeps_engines: bool = True) -> None:
        """Let replicas write finished rows and begin no others. `keeps_engines` is for the next job."""
        self._draining, self._keeps_engines = True, keeps_engines

    def keeps_engines(self) -> bool:
        """Whether the next job may have a replica's warm engine."""
        return self._keeps_engines

    def snapshot(self) -> list[ReplicaProgress]:
        """See :meth:`Membership.snapshot`."""
        return self._membership.snapshot()

    def news(self) -> tuple[list[ReplicaProgress], list[tuple[float, Done]], bool, bool]:
        """Reports; what was written since the last call, and when; whether that is all; whether any works.

        :raises StorageError: what a lost process has written can't be listed.
        """
        for process in self._membership.silent(self._queue.replicas):
            self._bury(process)
        self._free_rows_of_lost()
        self._left_parts.check()
        self._learn_earlier()
        done, self._news = self._news, []
        return self.snapshot(), done, self._queue.is_finished, bool(self._queue.replicas)

    def actors(self) -> tuple[set[str], set[str]]:
        """Names of the actors that have ever started, and of those that no rows were left for."""
        return self._membership.started_names, self._membership.left_names

    def _leaves(self, process: str) -> bool:
        """Let a replica leave that has nothing to do, if enough others stay for what comes back."""
        queue = self._queue
        if (
            queue.is_finished
            or len(queue.replicas) <= self._fewest
            or not queue.is_idle(process)
            or self._has_rows_for_another
        ):
            return False
        queue.leave(process)
        self._contents.gone(process)
        self._claims.gone(process)
        self._membership.leaves(process)
        return True

    def _take(self, process: str, report: PullRequest, done: Done | None) -> None:
        if done is not None:
            for part, keys in done.keys:
                self._claims.answered(part, keys)
            self._news.append((time.time(), replace(done, keys=[])))
            paths = self._reported.setdefault(process, set())
            paths.update(part.path for part in done.parts)
            paths.update(part.path for _, part in done.answers)
            self._answers.setdefault(process, []).extend(done.answers)
        answers = done is not None and done.answers
        if report.proves and (answers or self._queue.proves(process, report.finished)):
            self._membership.works(process)

    def _may_ask_for_lost(self) -> bool:
        return not self._left_parts and self._queue.may_ask_for_lost()

    @property
    def _has_rows_for_another(self) -> bool:
        return self._queue.has_rows_for_another or bool(self._left_parts)

    def _learn_earlier(self) -> None:
        """Know what was answered before the job.

        :raises StorageError: it can't be read.
        """
        if self._earlier is not None and self._earlier.done():
            found, self._earlier = self._earlier.result(), None
            for place, keys in found:
                self._claims.know(place, keys)
            self._claims.go_on()

    def _end(self, process: str) -> str:
        """A process is gone. Returns its actor."""
        self._engines.gone(process)
        self._call.ended(process)
        return self._membership.end(process)

    def _bury(self, process: str, begun: Begun | None = None) -> None:
        """A process is gone without a last report, and may have written parts."""
        actor = self._end(process)
        if process in self._queue.replicas and not self._queue.is_idle(process):
            reported = self._reported.get(process, set())
            self._left_parts.look_for(process, actor, begun, self._part_folders, reported)
        else:
            self._lose(process, actor, False, begun)

    def _free_rows_of_lost(self) -> None:
        """Finish what lost processes have written, where that is known now, and free their other rows."""
        for lost in self._left_parts.known():
            report, last = self._membership.report_of(lost.process), len(self._part_folders) - 1
            for step, part, ordinals, keys in lost.found.result():
                self._claims.answered(part, keys)
                if step < last:
                    self._answers.setdefault(lost.process, []).append((step, part))
                    self._news.append((time.time(), Done([], {}, report, [(step, part)])))
                else:
                    self._queue.finish(lost.process, self._input.numbers(ordinals))
                    self._news.append((time.time(), Done([part], {}, report)))
            self._lose(lost.process, lost.actor, False, lost.begun)

    def _lose(self, process: str, actor: str, engine_died: bool, begun: Begun | None) -> None:
        self._reported.pop(process, None)
        self._left_answers += self._answers.pop(process, [])
        self._contents.gone(process)
        self._claims.gone(process)
        if self._queue.lost(process, time.monotonic(), engine_died, begun):
            self._membership.was_to_blame(actor)
