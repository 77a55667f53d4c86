# SPDX-License-Identifier: Apache-2.0
"""Rows that ask the same: one of them is asked, here or by another replica, and the others wait.

See :mod:`~airflow_provider_raybatch.job.scheduling.claims`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.replica.inflight import InflightRequests, Row
from airflow_provider_raybatch.job.replica.process import ReplicaProcess
from airflow_provider_raybatch.job.scheduling.messages import Assignment
from airflow_provider_raybatch.job.work import Done

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
        """By key, also without rows while it is asked here, or claimed."""
        self._mine: set[bytes] = set()
        """Keys that are asked here, until they are written."""
        self._written: dict[bytes, Part] = {}
        """Keys that are written, until the coordinator knows."""
        self.waiting = 0
        """Rows that wait, or whose answer is read."""

    async def to_ask(self, rows: Sequence[Row]) -> list[Row]:
        """Those of some rows that are asked; the others land when their answer is there."""
        asked: list[Row] = []
        found: list[tuple[Part, Row]] = []
        claimed: dict[bytes, Row] = {}
        for row in rows:
            key = row.prepared.key
            if key is None or not row.prepared.is_shared:
                asked.append(row)
                continue
            if key in self._written:
                found.append((self._written[key], row))
            elif key in self._waiting:
                self._waiting[key].append(row)
            else:
                self._waiting[key], claimed[key] = [], row
                continue
            self.waiting += 1
        if claimed:
            answers = await self._replica.coordinator.claim.remote(self._replica.process, list(claimed))
            for (key, row), answer in zip(claimed.items(), answers, strict=True):
                if answer is True:
                    self._mine.add(key)
                    asked.append(row)
                    continue
                self.waiting += 1
                self._waiting[key].insert(0, row)
                if answer is not False:
                    found += [(answer, one) for one in self._waiting.pop(key)]
        return asked + await self._land(found)

    async def heard(self, assignment: Assignment) -> list[Row]:
        """Take over what others have answered, or can't answer any more; returns rows to ask."""
        found = [(part, row) for key, part in assignment.shared for row in self._waiting.pop(key, [])]
        asked = await self._land(found)
        for key in assignment.taken_over:
            self._mine.add(key)
            self.waiting -= 1
            asked.append(self._waiting[key].pop(0))
        return asked

    def given_back(self, rows: Iterable[Row]) -> tuple[list[bytes], list[Row]]:
        """Rows go back to the queue before they were asked.

        :returns: keys that are free for others, and rows to ask for those that wait here.
        """
        free, asked = [], []
        for row in rows:
            key = row.prepared.key
            if key is None or key not in self._mine:
                continue
            if self._waiting[key]:
                self.waiting -= 1
                asked.append(self._waiting[key].pop(0))
            else:
                del self._waiting[key]
                self._mine.discard(key)
                free.append(key)
        return free, asked

    def followers(self, rows: Iterable[Row]) -> Followers:
        """The rows that wait for these, which have an answer; they wait no more."""
        found: Followers = {}
        for row in rows:
            key = row.prepared.key
            if key is not None and row.prepared.is_shared and key in self._mine and self._waiting[key]:
                found[row], self._waiting[key] = self._waiting[key], []
                self.waiting -= len(found[row])
        return found

    async def written(self, keys: Iterable[tuple[Part, list[bytes]]]) -> list[Row]:
        """Answers are in parts: also for rows that came while these were written. Returns rows to ask."""
        found: list[tuple[Part, Row]] = []
        for part, some in keys:
            for key in some:
                self._written[key] = part
                self._mine.discard(key)
                found += [(part, row) for row in self._waiting.pop(key, [])]
        return await self._land(found)

    def reported(self, done: Done | None) -> None:
        """The coordinator knows of answers."""
        for _, keys in done.keys if done is not None else ():
            for key in keys:
                self._written.pop(key, None)

    async def _land(self, found: Sequence[tuple[Part, Row]]) -> list[Row]:
        """Let rows have answers of parts; returns those that get none, and are asked."""
        if not found:
            return []
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
