# SPDX-License-Identifier: Apache-2.0
"""The pull queue: which replica works on which rows.

A replica that can take rows asks (:meth:`PullQueue.pull`), and says in the same call what it has finished.
The queue gives it, in this order:

1. rows of pieces that it has opened, the longest first (`shelf.py`),
2. rows that came back from replicas that died, left, or gave them back: all that are free of a piece go
   together,
3. the next pieces of the listing, whole: a large row group, or as many small files as are needed,
4. rows of a piece that another replica has opened. Work stealing (Blumofe and Leiserson, Journal of the ACM
   46(5), 1999) takes them from the replica that has most. They come from that replica's memory, not from
   storage,
5. nothing, where no row is free. Then the replica that holds most rows beyond its slots is told to give half
   of them back (steal-half: Hendler and Shavit, PODC 2002).

How many rows it gets is in `share.py`, where they come from in `origins.py`. Each piece is read from storage
once, and at most once more for each replica that died or left with rows of it. What a replica held when it
died is free at once, or suspected of having killed the engine (`poison_rows.py`).

Pure: the caller says what time it is. A call costs O(log replicas), and array operations over the rows that
it moves and that the replica holds. Rows are sorted when their piece is opened, and when learned lengths
change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from airflow_provider_raybatch.job.execution.calls import Begun, GoneError, Grant, Report, no_rows
from airflow_provider_raybatch.job.execution.costs import Costs
from airflow_provider_raybatch.job.execution.largest import Largest
from airflow_provider_raybatch.job.execution.origins import Origins
from airflow_provider_raybatch.job.execution.pieces import Ordinals, Pieces
from airflow_provider_raybatch.job.execution.poison_rows import Group, Suspicion
from airflow_provider_raybatch.job.execution.share import Left, Rule, Share, share
from airflow_provider_raybatch.job.execution.shelf import Shelf
from airflow_provider_raybatch.job.execution.speed import Speed, Speeds

_SECONDS_FOR_AN_EMPTY_ENGINE = 60.0
"""Suspected rows wait so long for a replica that starts or is idle; then one is emptied for them."""


@dataclass
class _Replica:
    """What the queue knows of one.

    :param given: rows it was ever given, less those it gave back.
    :param holds: rows that it has and that are not finished, sorted.
    :param failed: rows that it is to write as failed.
    :param group: what it runs alone.
    :param wary: whether it must finish a row before it gets more than one.
    """

    slots: int
    shelf: Shelf
    speed: Speed
    given: int = 0
    answered: int = 0
    holds: Ordinals = field(default_factory=no_rows)
    failed: Ordinals = field(default_factory=no_rows)
    release: list[int] = field(default_factory=list)
    give_back: int = 0
    group: Group | None = None
    wary: bool = False

    @property
    def unanswered(self) -> int:
        return max(0, self.given - self.answered)

    def remove(self, rows: Ordinals) -> Ordinals:
        """Take rows from what it holds. Returns those that it held."""
        if not len(rows) or not len(self.holds):
            return no_rows()
        gone = np.isin(self.holds, rows)
        removed, self.holds = self.holds[gone], self.holds[~gone]
        return removed


class PullQueue:
    """Every row is with one living replica at a time, until it is finished.

    :param costs: what is known of the lengths of answers.
    :param rule: how far ahead replicas ask.
    :param look_ahead: rows that a replica opens ahead, in multiples of its slots, to find the long ones among
        them; only where rows have labels. They stay in its memory until they are given.
    """

    def __init__(
        self, pieces: Pieces, costs: Costs | None = None, rule: Rule | None = None, look_ahead: float = 8.0
    ) -> None:
        self._pieces = pieces
        self._costs = costs or Costs()
        self._rule = rule or Rule()
        self._look_ahead = 0.0 if pieces.labels is None else look_ahead
        self._order = self._costs.order(pieces)
        self._next = 0
        self._replicas: dict[str, _Replica] = {}
        self._returned: dict[int, Ordinals] = {}
        self._origins = Origins(pieces)
        self._speeds = Speeds()
        self._shelves, self._ahead = Largest(), Largest()
        self._suspicion = Suspicion()
        self._suspected_since = 0.0
        self._emptied: str | None = None
        self._repeated: set[int] = set()
        self._unanswered = self._recalled = 0
        rows = int(pieces.left.sum())
        self._row_bytes = pieces.total_bytes / rows if rows else 0.0
        self.starting = 0
        """Replicas whose engine is not ready yet: some rows are left for them."""
        self.free = self.unfinished = rows
        """Rows that any replica may get; rows that are not written."""

    @property
    def is_finished(self) -> bool:
        """Whether every row is written."""
        return self.unfinished == 0

    @property
    def has_rows_for_another(self) -> bool:
        """Whether one more replica would get rows: free or suspected ones, or some that others give back."""
        return bool(
            self.free
            or self._suspicion.groups
            or len(self._suspicion.poison)
            or self._recalled
            or self._ahead.find() is not None
        )

    @property
    def bytes_read(self) -> int:
        """Bytes that replicas were told to read from storage."""
        return self._origins.bytes_read

    @property
    def replicas(self) -> tuple[str, ...]:
        """The living replicas."""
        return tuple(self._replicas)

    def join(self, name: str, slots: int, now: float, wary: bool = False) -> None:
        """A replica's engine is ready.

        :param name: of its process: one that is started again has another name.
        :param slots: rows that its engine runs at once.
        :param wary: whether its earlier processes have died without a finished row. Then it gets a single
            row, alone and as a suspected one: where every row kills, halving would not end.
        :raises ValueError: the name is taken, or there are no slots.
        """
        if name in self._replicas or slots < 1:
            raise ValueError(
                f"replica {name!r} with {slots} slots: give each process its own name and a slot."
            )
        shelf, speed = Shelf(self._pieces, self._costs), Speed(slots, now)
        self._replicas[name] = _Replica(slots, shelf, speed, wary=wary)
        self._speeds.set(name, slots, None)

    def pull(self, name: str, now: float, report: Report | None = None) -> Grant:
        """A replica says what it has finished, and gets what it is to hold now.

        :raises GoneError: it was taken for lost.
        """
        replica = self._replica(name)
        self._count(name, replica, now, report or Report())
        share = self._share(name, replica)
        is_test = self._tests(name, replica, now)
        failed, self._suspicion.poison = self._suspicion.poison, no_rows()
        replica.failed = np.concatenate([replica.failed, failed])
        if is_test:
            rows = self._next_group(name, replica)
        else:
            rows = self._free_rows(name, replica, share.rows - replica.unanswered)
        given = np.concatenate([failed, rows])
        read, borrow = self._hand(name, replica, given)
        if not is_test:
            self._recall(replica)
        release, replica.release = tuple(replica.release), []
        give_back, replica.give_back = replica.give_back, 0
        self._recalled -= give_back
        self._see(name, replica)
        return Grant(
            rows=rows,
            read=read,
            borrow=borrow,
            repeated=self._repeated_of(given),
            alone=replica.group is not None,
            failed=failed,
            release=release,
            give_back=give_back,
            flush=is_test,
            ask_below=share.ask_below if self.free else min(share.ask_below, replica.slots),
        )

    def give_back(self, name: str, rows: Ordinals) -> None:
        """A replica gives back rows that it has not begun, and keeps their content until others get them.

        :raises GoneError: it was taken for lost.
        """
        replica = self._replica(name)
        if replica.group is not None:
            return
        returned = replica.remove(rows[~np.isin(rows, replica.failed)])
        before = replica.unanswered
        replica.given -= len(returned)
        self._unanswered += replica.unanswered - before
        self._origins.lend(name, returned)
        self._return(returned)
        self.free += len(returned)
        self._see(name, replica)

    def finish(self, name: str, rows: Ordinals) -> None:
        """A replica that is about to be lost has written rows, and could not say so by itself."""
        replica = self._replica(name)
        self._count_finished(replica, rows)

    def is_idle(self, name: str) -> bool:
        """Whether a replica has nothing to do: every row that it got is finished."""
        replica = self._replica(name)
        return not len(replica.holds) and replica.group is None

    def wants(self, name: str) -> bool:
        """Whether a replica has something to give back that others wait for."""
        return name in self._replicas and self._replicas[name].give_back > 0

    def leave(self, name: str) -> None:
        """A replica ends. It has written what it has finished, and begins nothing."""
        replica = self._replica(name)
        if replica.group is not None:
            self._suspicion.groups.appendleft(Group(replica.holds, replica.group.silent_deaths))
            self._reopen(replica.holds)
            replica.holds = no_rows()
        self._bury(name)

    def lost(self, name: str, now: float, engine_died: bool = False, begun: Begun | None = None) -> bool:
        """A replica is gone: its process, its node, or its engine. Does nothing where that is known already.

        :param engine_died: whether it said that its engine ended by itself.
        :param begun: what it had begun, where that is known; else all that it had may be to blame.
        :returns: whether it has died of a single row, which is to blame.
        """
        if name not in self._replicas:
            return False
        blamed = len(self._suspicion.poison)
        replica = self._replicas[name]
        self._repeated.update(replica.holds.tolist())
        failed = replica.remove(replica.failed)
        blamed += len(failed)
        self._suspicion.poison = np.concatenate([self._suspicion.poison, failed])
        suspects = replica.remove(replica.holds if begun is None else begun.in_engine)
        prepared = no_rows() if begun is None else replica.remove(begun.in_preparation)
        self._reopen(np.concatenate([failed, suspects, prepared]))
        if not self._suspicion.groups:
            self._suspected_since = now
        if replica.group is None:
            self._suspicion.suspect(suspects)
            self._suspicion.suspect_together(prepared)
        else:
            alone = Group(np.concatenate([suspects, prepared]), replica.group.silent_deaths)
            if len(alone.rows):
                self._suspicion.died(alone, engine_died)
            if len(replica.holds):
                silent_deaths = 0 if len(alone.rows) else alone.silent_deaths
                self._suspicion.groups.append(Group(replica.holds, silent_deaths))
                self._reopen(replica.holds)
                replica.holds = no_rows()
        self._bury(name)
        return len(self._suspicion.poison) > blamed

    def _replica(self, name: str) -> _Replica:
        if name not in self._replicas:
            raise GoneError(f"replica {name!r} was taken for lost; its rows are others' now.")
        return self._replicas[name]

    def _count(self, name: str, replica: _Replica, now: float, report: Report) -> None:
        before = replica.unanswered
        replica.answered = max(replica.answered, report.answered)
        self._unanswered += replica.unanswered - before
        self._count_finished(replica, report.finished)
        if replica.group is not None and not len(replica.holds):
            replica.group = None
        self._costs.learn(report.lengths)
        replica.speed.sample(now, replica.answered, report.work, 2 * replica.unanswered >= replica.slots)
        self._speeds.set(name, replica.slots, replica.speed.rate)
        self._see(name, replica)

    def proves(self, name: str, finished: Ordinals) -> bool:
        """Whether the engine has answered one of these rows: to write one that kills it takes no engine."""
        if name not in self._replicas:
            return False
        return not bool(np.isin(finished, self._replicas[name].failed).all())

    def _count_finished(self, replica: _Replica, rows: Ordinals) -> None:
        finished = replica.remove(rows)
        self.unfinished -= len(finished)
        if not np.isin(finished, replica.failed).all():
            replica.wary = False
        if len(replica.failed):
            replica.failed = replica.failed[np.isin(replica.failed, replica.holds)]
        if self._repeated:
            self._repeated.difference_update(finished.tolist())

    def _share(self, name: str, replica: _Replica) -> Share:
        left = Left(self.free, self.free + self._unanswered, self._row_bytes)
        part, soon = self._speeds.part(name), self._speeds.part(name, self.starting)
        return share(self._rule, replica.slots, replica.speed.pace, part, soon, left)

    def _free_rows(self, name: str, replica: _Replica, count: int) -> Ordinals:
        """Up to `count` rows that are free, its own before others'."""
        if count <= 0 or not self.free:
            return no_rows()
        ahead = min(self._look_ahead * replica.slots, self.free * self._speeds.part(name))
        self._fill(replica, count + math.ceil(ahead))
        self._shelves.set(name, len(replica.shelf))
        parts: list[Ordinals] = []
        while count > 0:
            owner = name if len(replica.shelf) else self._shelves.find()
            if owner is None:
                break
            shelf = self._replicas[owner].shelf
            parts.append(shelf.take(count))
            self._shelves.set(owner, len(shelf))
            count -= len(parts[-1])
        rows = np.concatenate([no_rows(), *parts])
        self.free -= len(rows)
        return rows

    def _fill(self, replica: _Replica, count: int) -> None:
        """Fill its shelf with rows that came back, and with those of pieces that no replica has opened."""
        parts, have = [], len(replica.shelf)
        while have < count:
            if self._returned:
                piece = next(iter(self._returned))
                rows = self._returned.pop(piece)
            elif self._next < len(self._order):
                piece = int(self._order[self._next])
                self._next += 1
                rows = self._pieces.rows(piece)
                self._origins.open(piece, len(rows))
            else:
                break
            parts.append(rows)
            have += len(rows)
        if parts:
            replica.shelf.add(parts)

    def _hand(
        self, name: str, replica: _Replica, rows: Ordinals
    ) -> tuple[tuple[int, ...], dict[str, Ordinals]]:
        """Rows are the replica's now. Returns the pieces to read, and the rows to borrow."""
        if not len(rows):
            return (), {}
        replica.holds = np.sort(np.concatenate([replica.holds, rows]))
        before = replica.unanswered
        replica.given += len(rows)
        self._unanswered += replica.unanswered - before
        origin = self._origins.give(name, rows)
        for reader, piece in origin.release:
            self._replicas[reader].release.append(piece)
        return tuple(origin.read), origin.borrow

    def _recall(self, replica: _Replica) -> None:
        """Where it could begin more than is free: let the one with most rows ahead give half of them back."""
        if self.free or replica.unanswered >= replica.slots:
            return
        richest = self._ahead.find()
        if richest is not None:
            other = self._replicas[richest]
            ahead = other.unanswered - other.slots - other.give_back
            count = min((ahead + 1) // 2, replica.slots - replica.unanswered)
            other.give_back += count
            self._recalled += count
            self._see(richest, other)

    def _see(self, name: str, replica: _Replica) -> None:
        beyond = replica.unanswered - replica.slots - replica.give_back
        self._ahead.set(name, 0 if replica.group is not None else beyond)

    def _tests(self, name: str, replica: _Replica, now: float) -> bool:
        """Whether the replica runs suspected rows, or gets no others so that it can run them."""
        if replica.group is not None or replica.wary:
            return True
        if not self._suspicion.groups:
            self._emptied = None
            return False
        if not len(replica.holds):
            return True
        if self._emptied is None and now - self._suspected_since >= _SECONDS_FOR_AN_EMPTY_ENGINE:
            self._emptied = name
        return self._emptied == name

    def _next_group(self, name: str, replica: _Replica) -> Ordinals:
        """The next suspected rows, if its engine is empty."""
        if len(replica.holds) or len(replica.failed):
            return no_rows()
        if replica.wary:
            replica.group = self._single_row(name, replica)
            return no_rows() if replica.group is None else replica.group.rows
        replica.group = self._suspicion.groups.popleft()
        return replica.group.rows

    def _single_row(self, name: str, replica: _Replica) -> Group | None:
        """One that is not suspected, if there is one left."""
        row = self._free_rows(name, replica, 1)
        if len(row):
            return Group(row)
        if not self._suspicion.groups:
            return None
        group = self._suspicion.groups.pop()
        if len(group.rows) < 2:
            return group
        self._suspicion.groups.append(Group(group.rows[:-1]))
        return Group(group.rows[-1:])

    def _bury(self, name: str) -> None:
        """Forget a replica, and free what it had."""
        replica = self._replicas.pop(name)
        self._unanswered -= replica.unanswered
        self._recalled -= replica.give_back
        for place in (self._speeds, self._shelves, self._ahead, self._origins):
            place.drop(name)
        self._put_back(replica.shelf.clear())
        self._return(replica.holds)
        self.free += len(replica.holds)
        if self._emptied == name:
            self._emptied = None

    def _return(self, rows: Ordinals) -> None:
        self._reopen(rows)
        self._put_back(rows)

    def _reopen(self, rows: Ordinals) -> None:
        for piece, part in self._pieces.split(rows).items():
            self._origins.open(piece, len(part))

    def _put_back(self, rows: Ordinals) -> None:
        for piece, part in self._pieces.split(rows).items():
            known = self._returned.get(piece)
            self._returned[piece] = part if known is None else np.concatenate([known, part])

    def _repeated_of(self, rows: Ordinals) -> Ordinals:
        if not self._repeated or not len(rows):
            return no_rows()
        return np.array([row for row in rows.tolist() if row in self._repeated], dtype=np.int64)
