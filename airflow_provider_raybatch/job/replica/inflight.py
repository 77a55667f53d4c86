# SPDX-License-Identifier: Apache-2.0
"""The rows of one engine: those that wait for it, those that it works on, and those that it has answered."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from airflow_provider_raybatch.job.engine.base import Engine, EngineDeadError
from airflow_provider_raybatch.job.input.chunk_rows import ChunkRows
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.replica.admission import AdmissionControl, group
from airflow_provider_raybatch.job.replica.crash_log import CrashLog
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.row_order.lengths import UNKNOWN, Costs
from airflow_provider_raybatch.job.work import Stopwatch

_LEAD = 1.0
"""Seconds of rows that wait in the engine, so that it never waits for this process."""


@dataclass(eq=False)
class Row:
    """A row from when it is rendered until it is written.

    :param ordinal: its number in the queue.
    :param position: its ordinal in the input, which differs where the queue has buckets.
    :param rows: with which it was read, `place` among them.
    :param encoded: what the engine takes; `result` is what it gave, or why the row never got there.
    :param label: of the expected length of its answer.
    :param step: which of the job's steps asks it.
    :param is_last: whether its answer completes it.
    :param has_begun: whether this process has answers of it that no other knows of yet.
    :param claimed: key of the request that it is asked with for all rows that ask the same.
    """

    ordinal: int
    position: int
    prepared: PreparedRow
    rows: ChunkRows
    place: int
    encoded: Any = None
    result: Any = None
    label: int = UNKNOWN
    step: int = 0
    is_last: bool = True
    has_begun: bool = False
    claimed: bytes | None = None

    def move(self, rows: ChunkRows, place: int) -> None:
        """Its answer has changed columns of earlier steps, so it is in another chunk."""
        self.rows, self.place = rows, place

    def complete(self, prepared: PreparedRow, encoded: Any) -> None:
        """Its images are in its key now, and in what the engine takes, unless that is a failure."""
        self.prepared, self.encoded = prepared, encoded

    def follow(self, leader: Row) -> None:
        """It has the images of the row that was asked for it, which have changed, and so its key."""
        self.prepared = replace(self.prepared, key=leader.prepared.key)

    def release(self) -> bytes | None:
        """It is not asked for others any more. Returns the key that it had claimed."""
        key, self.claimed = self.claimed, None
        return key

    @property
    def has_images(self) -> bool:
        """Whether its request lacks images, which it gets near its turn."""
        request = self.prepared.request
        return isinstance(request, Request) and bool(request.images)


class ImageStage(Protocol):
    """Gets images into requests before these go into the engine."""

    @property
    def has_room(self) -> bool:
        """Whether it takes another row now."""

    def load(self, row: Row) -> asyncio.Future[RowFailure | None]:
        """Begin to complete a row's request; the result says why that can't be done."""

    def entered(self) -> None:
        """A row that is complete goes into the engine."""


class InflightRequests:
    """The rows of one engine: it is kept full, or its steps of one size. The longest answers begin first.

    :param most: rows that are in the engine at once.
    :param grows: whether there may be more, by what it answers in a second, or fewer, by what is left.
    :param shares: whether other replicas may need the rows that wait.
    :param watch: counts the time in which the engine has rows.
    :param changed: called when a row is answered, or the engine has failed.
    :param begun: records which rows are in the engine.
    :param images: completes the requests of rows with images, those that are next ahead of their turn.
    :param longest_wait: seconds after which no row begins until the answers that wait are written.
    :ivar has_share: whether the replica has its share of all rows that are left.
    :ivar goes_on: whether another step may ask a row that has landed.
    """

    def __init__(
        self,
        engine: Engine,
        report: ReplicaProgress,
        most: int,
        grows: bool,
        shares: bool,
        watch: Stopwatch,
        changed: Callable[[], None],
        begun: CrashLog,
        images: ImageStage | None = None,
        longest_wait: float = math.inf,
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._report = report
        self._most = most
        self._grows = grows
        self._shares = shares
        self._changed = changed
        self._begun = begun
        self._images = images
        self._loading: dict[asyncio.Future[RowFailure | None], Row] = {}
        self._loaded: deque[Row] = deque()
        self._starved_since: float | None = None
        self._is_cancelled = False
        self._lead = 0
        self._second = (0.0, 0)
        self._costs = Costs()
        self._level = AdmissionControl()
        self._longest_wait = longest_wait
        self._since = 0.0
        self._writing_since: float | None = None
        self._busy_since = 0.0
        self.waiting: deque[Row] = deque()
        self.inside: dict[asyncio.Future[Any], Row] = {}
        self.landed: list[Row] = []
        self.error: BaseException | None = None
        self.has_share = False
        self.goes_on = False

    @property
    def unanswered(self) -> int:
        """Number of rows that wait for the engine, or are in it."""
        return len(self.waiting) + len(self._loading) + len(self._loaded) + len(self.inside)

    @property
    def lacks_rows(self) -> bool:
        """Whether the engine could have more rows, and none waits for it."""
        return not self.waiting and len(self.inside) < self.at_once

    def waits_for(self) -> float:
        """Seconds since the oldest result landed that has not been taken."""
        return time.monotonic() - self._since if self.landed else 0.0

    def add(self, rows: Iterable[Row]) -> None:
        """Let rows go into the engine as soon as there is room."""
        added = list(rows)
        self._level.got([row.label for row in added])
        self.waiting = deque(self.ordered([*self.waiting, *added]))
        self._feed()

    def ordered(self, rows: Iterable[Row]) -> list[Row]:
        """Rows with the longest expected answers first; equal ones keep their order."""
        return sorted(rows, key=lambda row: -self._costs.rank(row.label))

    def tells_apart(self, rows: Iterable[Row]) -> bool:
        """Whether some of these rows have longer expected answers than others."""
        return len({self._costs.rank(row.label) for row in rows}) > 1

    def land(self, row: Row, result: Any) -> None:
        """A row has its result."""
        if not self.landed:
            self._since = time.monotonic()
        row.result = result
        self.landed.append(row)
        self.goes_on |= not row.is_last
        self._report.rows += row.is_last
        self._report.last_answer = time.time()

    def take(self) -> list[Row]:
        """What has landed since the last time, to be written."""
        if self.landed:
            self._writing_since = self._since
        taken, self.landed, self.goes_on = self.landed, [], False
        return taken

    def written(self) -> None:
        """What was taken is written."""
        self._writing_since = None
        self._feed()

    @property
    def _is_behind(self) -> bool:
        """Whether an answer waits for too long to be written: a kill would lose all that follow it, too."""
        since = self._since if self._writing_since is None else self._writing_since
        waits = self.landed or self._writing_since is not None
        return bool(waits) and time.monotonic() - since >= self._longest_wait

    def take_back(self, count: int) -> list[Row]:
        """Up to `count` rows that have not begun: the shortest ones."""
        kept, rows = deque[Row](), list[Row]()
        while self.waiting and len(rows) < count:
            row = self.waiting.pop()
            if row.has_begun:
                kept.appendleft(row)
            else:
                rows.append(row)
        self.waiting += kept
        self._level.gave_back([row.label for row in rows])
        return rows

    async def cancel(self) -> None:
        """End what is still in the engine, and let nothing more in."""
        self._is_cancelled = True
        self.waiting.clear()
        flying: list[asyncio.Future[Any]] = [*self._loading, *self.inside]
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)

    @property
    def at_once(self) -> int:
        """Number of rows that may be in the engine, without the lead."""
        if not (self._grows and self.has_share):
            return self._most
        return self._level.rows(self._costs.expected, self._most)

    def _feed(self) -> None:
        if self._is_cancelled:
            return  # a row whose images have just come would begin
        self._fill()
        if self._images is not None:
            self._load_ahead(self._images)  # rows that went into the engine have made room
            self._fill()  # with rows that stood behind them and need no image
            self._measure_wait(bool(self._loading) and len(self.inside) < self.at_once)

    def _fill(self) -> None:
        ahead = len(self.waiting) + len(self._loaded)
        if not ahead or self._is_behind:
            return
        room = self.at_once
        if room < self._most:
            if room - len(self.inside) < min(group(room), ahead):
                return
        elif not (self._shares and len(self.waiting) <= self._lead):
            # In the end others may need the few that wait, which could not be given back from the engine.
            room += self._lead
        while self.error is None and len(self.inside) < room:
            if self._images is not None and self._loaded:
                self._images.entered()
                row = self._loaded.popleft()
            elif self.waiting and (self._images is None or not self.waiting[0].has_images):
                row = self.waiting.popleft()
            else:
                return  # what is next lacks its images
            if not self.inside:
                self._busy_since = time.monotonic()
            self._report.first_request = self._report.first_request or time.time()
            self._begun.begin(row.ordinal)
            task = asyncio.ensure_future(self._engine.generate(row.encoded))
            self.inside[task] = row
            task.add_done_callback(self._ended)

    def _load_ahead(self, stage: ImageStage) -> None:
        """Let the images of the rows that are next be loaded."""
        while self.error is None and self.waiting and self.waiting[0].has_images and stage.has_room:
            row = self.waiting.popleft()
            task = stage.load(row)
            self._loading[task] = row
            task.add_done_callback(self._ended_loading)

    def _ended_loading(self, task: asyncio.Future[RowFailure | None]) -> None:
        row = self._loading.pop(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._note(error)
        elif (failure := task.result()) is not None:
            self._level.answered(row.label)
            self.land(row, failure)
        else:
            self._loaded.append(row)
        self._feed()
        self._changed()

    def _note(self, error: BaseException) -> None:
        """Keep what ends the replica: the first error, or that the engine died, which explains others."""
        if self.error is None or isinstance(error, EngineDeadError):
            self.error = error

    def _measure_wait(self, is_starved: bool) -> None:
        """Count the time in which the engine could have more rows, had their images come sooner."""
        now = time.monotonic()
        if self._starved_since is not None:
            self._watch.add("wait_for_images", self._starved_since)
        self._starved_since = now if is_starved else None

    def _ended(self, task: asyncio.Future[Any]) -> None:
        row = self.inside.pop(task)
        if not self.inside:
            self._watch.add("generate", self._busy_since)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._note(error)
        else:
            self._begun.end([row.ordinal])
            self._level.answered(row.label)
            raw = task.result()
            if not isinstance(raw, RowFailure):
                # Not when it is written, which may be a while later.
                asked, answered = self._engine.tokens(raw)
                self._report.input_tokens += asked
                self._report.output_tokens += answered
                if self._costs.learn(row.label, answered):
                    self._level.learned()
                    self.waiting = deque(self.ordered(self.waiting))
            self.land(row, raw)
            self._measure()
        self._feed()
        self._changed()

    def _measure(self) -> None:
        if not self._grows:
            return
        began, count = self._second
        now = time.monotonic()
        if now - began < _LEAD:
            self._second = began, count + 1
        else:
            self._lead = count if now - began < 2 * _LEAD else 0
            self._second = now, 1
