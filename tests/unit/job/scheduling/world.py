# SPDX-License-Identifier: Apache-2.0
"""Simulated replicas around a queue: each knows and holds only what a real one could."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from airflow_provider_raybatch.job.scheduling.messages import Assignment, Begun, PullRequest
from airflow_provider_raybatch.job.scheduling.queue import PullQueue
from airflow_provider_raybatch.job.scheduling.row_index import RowIndex, SharedContents


@dataclass
class Member:
    """A replica's own view.

    :param at_once: rows that it lets into its engine.
    :param holds: unwritten rows that it holds, in the order in which they came.
    :param failed: the held rows that it must write as failed.
    :param pieces: pieces that it has read and keeps.
    :param borrows: pieces that it has still to fetch from the object store, by order.
    :param touched: every piece from which it ever held rows.
    """

    at_once: int
    holds: list[int] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    pieces: set[int] = field(default_factory=set)
    borrows: list[set[int]] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    answered: int = 0
    alone: bool = False

    def engine(self) -> list[int]:
        """Return the rows that are in its engine."""
        return [row for row in self.holds if row not in self.failed][: self.at_once]


class World:
    """Checks the invariants after each step."""

    def __init__(self, pieces: RowIndex) -> None:
        self.pieces = pieces
        self.queue = PullQueue(pieces)
        self.members: dict[str, Member] = {}
        self.written: dict[int, bool] = {}
        """Whether it is good, by row."""
        self.contents = SharedContents(self.queue.is_open)
        """References are names of the replicas that have put a piece into the object store."""
        self.bytes_read, self.allowed_bytes = 0, pieces.total_bytes
        self.now = 0.0
        self._names = 0

    def join(self, slots: int, at_once: int | None = None) -> str:
        self._names += 1
        name = f"replica-{self._names}"
        self.queue.join(name, slots, self.now)
        self.members[name] = Member(at_once or slots)
        return name

    def pull(self, name: str, finish: int = 0) -> Assignment:
        """Ask, and report the first `finish` rows as written."""
        member = self.members[name]
        finished = member.holds[:finish]
        del member.holds[:finish]
        for row in finished:
            assert row not in self.written
            self.written[row] = row not in member.failed
        member.answered += len(finished)
        member.alone = member.alone and bool(member.holds)
        report = PullRequest(member.answered, float(member.answered), _rows(finished), member.at_once)
        assignment = self.queue.pull(name, self.now, report)
        self._receive(name, member, assignment)
        return assignment

    def answer(self, name: str) -> Assignment:
        """Ask, and report all rows in the engine and all failed rows as written."""
        member = self.members[name]
        member.holds.sort(key=lambda row: row not in member.failed)
        return self.pull(name, len(member.failed.intersection(member.holds)) + member.at_once)

    def give_back(self, name: str, count: int) -> None:
        """Give back the last rows that are not in the engine."""
        member = self.members[name]
        ahead = [row for row in member.holds if row not in member.failed][member.at_once :]
        rows = ahead[max(0, len(ahead) - count) :]
        self.contents.put(name, {piece: [name] for piece in self.queue.give_back(name, _rows(rows))})
        if not member.alone:
            member.holds = [row for row in member.holds if row not in rows]

    def fetch(self, name: str) -> None:
        """Fetch what the replica was told to take from the object store, and has not taken yet."""
        member = self.members[name]
        for borrow in member.borrows:
            for piece in borrow:
                # Where the replica that had put it is gone, this one reads the piece from storage, too.
                assert self.contents.get(piece), "no replica has put this row's content into the object store"
            self.contents.fetched(name, borrow)
        member.borrows = []

    def lose(self, name: str, engine_died: bool, knows_begun: bool) -> None:
        member = self.members[name]
        self.queue.lost(name, self.now, engine_died, Begun(_rows(member.engine())) if knows_begun else None)
        self._forget(name)

    def leave(self, name: str) -> None:
        self.queue.leave(name)
        self._forget(name)

    def check(self) -> None:
        held = [row for member in self.members.values() for row in member.holds]
        assert len(held) == len(set(held))
        assert not self.written.keys() & set(held)
        assert self.queue.unfinished == self.pieces.left.sum() - len(self.written)
        assert self.bytes_read <= self.allowed_bytes
        awaited = {piece for member in self.members.values() for borrow in member.borrows for piece in borrow}
        for piece in range(len(self.pieces)):
            if self.contents.get(piece) is not None:
                assert self.queue.is_open(piece) or piece in awaited, "it stays in the object store"

    def _receive(self, name: str, member: Member, assignment: Assignment) -> None:
        if assignment.isolated and len(assignment.rows):
            assert not member.holds
        member.alone = assignment.isolated
        given = [*assignment.failed.tolist(), *assignment.rows.tolist()]
        pieces = set(self.pieces.of(_rows(given)).tolist())
        assert pieces >= assignment.borrow | assignment.put
        self.contents.given(name, pieces, assignment.borrow)
        if assignment.borrow:
            member.borrows.append(set(assignment.borrow))
        self.bytes_read += int(self.pieces.sizes[sorted(pieces - assignment.borrow - member.pieces)].sum())
        member.pieces.update(pieces - assignment.borrow)
        self.contents.put(name, {piece: [name] for piece in assignment.put})
        member.touched.update(pieces)
        member.pieces.difference_update(assignment.release)
        member.failed.update(assignment.failed.tolist())
        member.holds += given
        self.check()

    def _forget(self, name: str) -> None:
        member = self.members.pop(name)
        self.contents.gone(name)
        self.allowed_bytes += int(self.pieces.sizes[sorted(member.touched)].sum())
        self.check()


def _rows(rows: list[int]) -> np.ndarray:
    return np.array(rows, dtype=np.int64)
