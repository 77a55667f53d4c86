# SPDX-License-Identifier: Apache-2.0
"""Rows that ask the same: one of them is asked, here or by another replica, and the others wait.

See :mod:`~airflow_provider_raybatch.job.scheduling.claims`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.replica.inflight import InflightRequests, Row
from airflow_provider_raybatch.job.replica.process import ReplicaProcess
from airflow_provider_raybatch.job.row import Request, lacks_images
from airflow_provider_raybatch.job.work import Done

Found: TypeAlias = tuple[Part, Row]
"""A row, and the part that has its answer."""
Followers: TypeAlias = dict[Row, list[Row]]
"""Rows that ask what another one has asked, by the latter."""


class SharedRequests:
    """The rows of a replica that wait for the answer of another row.

    :param inflight: gets rows that have an answer.
    """

    def __init__(self, replica: ReplicaProcess, inflight: InflightRequests) -> None:
        self._replica = replica
        self._inflight = inflight
        self._waiting: dict[bytes, list[Row]] = {}
        """By key, whoever asks it."""
        self._mine: set[bytes] = set()
        """Keys that are asked here, until they are written."""
        self._written: dict[bytes, Part] = {}
        """Keys that are written, until the coordinator knows."""
        self._claiming = 0
        """Claims on their way. A large reply may come after that of a later call."""
        self._told: dict[bytes, Part | None] = {}
        """What that has said meanwhile of keys for which none waits here; ``None`` where these are free."""
        self.waiting = 0
        """Rows that wait, or whose answer is read."""

    async def to_ask(self, rows: Sequence[Row]) -> tuple[list[Row], list[Found]]:
        """Those of some rows that are asked, and those to :meth:`land`; the others wait for their answer.

        A row whose key waits here is claimed again: it may be that of the process that was to ask it.
        """
        asked: list[Row] = []
        found: list[Found] = []
        claimed: dict[bytes, Row] = {}
        for row in rows:
            key = row.prepared.key
            if key is None or not row.prepared.is_shared:
                asked.append(row)
                continue
            if key in self._written:
                self.waiting += 1
                found.append((self._written[key], row))
            elif key in self._mine or key in claimed:
                self._wait(key, row)
            else:
                claimed[key] = row
        again: list[Row] = []
        for (key, row), said in zip(claimed.items(), await self._claim(list(claimed)), strict=True):
            answer = self._told.pop(key, said) if said is False else said
            if answer is True:
                asked.append(self._own(key, row))
            elif answer is None:
                again.append(row)
            else:
                self._wait(key, row)
                if answer is not False:
                    found += [(answer, one) for one in self._waiting.pop(key)]
        if not self._claiming:
            self._told.clear()
        if again:
            more, others = await self.to_ask(again)
            return asked + more, found + others
        return asked, found

    async def _claim(self, keys: list[bytes]) -> Sequence[Any]:
        """See :meth:`Claims.claim`."""
        if not keys:
            return ()
        self._claiming += 1
        try:
            said: Sequence[Any] = await self._replica.coordinator.claim.remote(self._replica.process, keys)
        finally:
            self._claiming -= 1
        return said

    def _wait(self, key: bytes, row: Row) -> None:
        self.waiting += 1
        self._waiting.setdefault(key, []).append(row)

    async def heard(self, shared: Iterable[tuple[bytes, Part]]) -> list[Row]:
        """Let rows land whose answers are there; returns those that get none, and are asked."""
        found: list[Found] = []
        for key, part in shared:
            if key in self._waiting:
                found += [(part, row) for row in self._waiting.pop(key)]
            elif self._claiming:
                self._told[key] = part
        return await self.land(found)

    def take_over(self, keys: Iterable[bytes]) -> tuple[list[bytes], list[Row]]:
        """Ask what no other replica asks; returns keys that nothing waits for any more, and rows to ask."""
        free, asked = [], []
        for key in keys:
            if key in self._mine:
                continue  # a row that came meanwhile asks it
            if (row := self._next(key)) is None:
                free.append(key)
                if self._claiming:
                    self._told[key] = None
            else:
                asked.append(self._own(key, row))
        return free, asked

    def _next(self, key: bytes) -> Row | None:
        """A row that waits for a key, and waits no more."""
        rows = self._waiting.get(key)
        if not rows:
            self._waiting.pop(key, None)
            return None
        self.waiting -= 1
        return rows.pop(0)

    def _own(self, key: bytes, row: Row) -> Row:
        """A row is asked for all that ask the same."""
        self._mine.add(key)
        row.claimed = key
        return row

    def given_back(self, rows: Sequence[Row]) -> tuple[list[bytes], list[Row]]:
        """Rows are not asked after all, or their images have changed or can't be read.

        :returns: keys that are free for others, and rows to ask for those that wait here.
        """
        keys = [key for row in rows if (key := row.release()) is not None]
        self._mine.difference_update(keys)
        return self.take_over(keys)

    def followers(self, rows: Iterable[Row]) -> Followers:
        """The rows that wait for these, which have an answer; they wait no more.

        Where a row's images are not what its key says any more, only those that refer to the same follow it.
        """
        found: Followers = {}
        for row in rows:
            key = row.claimed
            if key is None or not (some := self._waiting.pop(key, [])):
                continue
            if self.changed([row]):
                left = [one for one in some if _references(one) != _references(row)]
                some = [one for one in some if _references(one) == _references(row)]
                self._waiting |= {key: left} if left else {}
                for one in some:
                    one.follow(row)
            if some:
                found[row] = some
                self.waiting -= len(some)
        return found

    @staticmethod
    def changed(rows: Iterable[Row]) -> list[Row]:
        """Those of rows that have asked something else than they claimed, or whose images can't be read."""
        return [
            row
            for row in rows
            if row.claimed is not None and (row.claimed != row.prepared.key or lacks_images(row.result))
        ]

    async def written(self, keys: Iterable[tuple[Part, list[bytes]]]) -> list[Row]:
        """Answers are in parts: also for rows that came while these were written. Returns rows to ask."""
        found: list[Found] = []
        for part, some in keys:
            for key in some:
                self._written[key] = part
                self._mine.discard(key)
                found += [(part, row) for row in self._waiting.pop(key, [])]
        return await self.land(found)

    def reported(self, done: Done | None) -> None:
        """The coordinator knows of answers."""
        for _, keys in done.keys if done is not None else ():
            for key in keys:
                self._written.pop(key, None)

    async def land(self, found: Sequence[Found]) -> list[Row]:
        """Let rows have answers of parts; returns those that get none, and are asked."""
        if not found:
            return []
        found = sorted(found, key=lambda one: one[0].path)  # a file may be larger than what is kept in memory
        of = self._replica.asker.shared_answers.of
        answers = await self._replica.thread(
            lambda: [of(row.step, part, row.prepared.key or b"") for part, row in found]
        )
        self.waiting -= len(found)
        left = []
        for (_, row), answer in zip(found, answers, strict=True):
            if answer is None:  # the part is damaged
                left.append(row)
            else:
                self._inflight.land(row, answer)
        return left


def _references(row: Row) -> tuple[str, ...]:
    request = row.prepared.request
    return request.references if isinstance(request, Request) else ()
