# SPDX-License-Identifier: Apache-2.0
"""The pull queue: which replica works on which rows.

A replica asks when it can take rows (:meth:`PullQueue.pull`), and reports in the same call what it has
finished. docs/internals/scheduling.md tells which rows it gets, in which order. `row_index.py` knows which
rows no replica has, and where their content comes from; `prefetch_target.py` how many a replica gets, and
`rebalance.py` how many it gives back. What a replica held when it died is free at once, or suspected of
having killed the engine (`poison_search.py`).

The caller passes the time. A call costs array operations over the rows that it moves and that the replica
holds, and where no row is free a look at the sixteen replicas that hold most beyond what they let in.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np

from airflow_provider_raybatch.job.scheduling.messages import (
    MOST_WAITING,
    Assignment,
    Begun,
    PullRequest,
    StaleReplicaError,
)
from airflow_provider_raybatch.job.scheduling.poison_search import Group, PoisonSearch
from airflow_provider_raybatch.job.scheduling.prefetch_target import (
    EARLY_SECONDS,
    Load,
    Speed,
    Speeds,
    prefetch_target,
    to_fill,
    to_move,
)
from airflow_provider_raybatch.job.scheduling.row_index import (
    ContentLocations,
    Ordinals,
    PendingRows,
    RowIndex,
    no_rows,
)

_LOOKED_AT = 16
"""Of the replicas with rows to give back, those with most: a thousand would take milliseconds a call."""


@dataclass
class _Replica:
    """What the queue knows of one.

    :param at_once: rows that it lets into its engine now. What it has beyond them, it can give back.
    :param joined: seconds by the caller's clock; `heard` is its last report.
    :param given: rows it was ever given, less those it gave back.
    :param waiting: of its rows, those that wait for another row's answer.
    :param counted: its unanswered rows in the queue's sum.
    :param holds: unfinished rows, sorted; of them `failed` are to be written as failed.
    :param group: the suspected rows that it runs.
    :param on_probation: whether it must finish a row before it gets more than one.
    :param waits_until: by then it gets rows that another replica was told to give back.
    """

    slots: int
    at_once: int
    joined: float
    heard: float
    speed: Speed
    given: int = 0
    answered: int = 0
    waiting: int = 0
    counted: int = 0
    holds: Ordinals = field(default_factory=no_rows)
    failed: Ordinals = field(default_factory=no_rows)
    give_back: int = 0
    group: Group | None = None
    on_probation: bool = False
    waits_until: float = 0.0

    @property
    def unanswered(self) -> int:
        return max(0, self.given - self.answered - min(self.waiting, MOST_WAITING * self.slots))

    @property
    def is_blocked(self) -> bool:
        """Whether all that it has waits for the answers of other rows."""
        return 0 < self.waiting >= self.given - self.answered

    @property
    def load(self) -> Load:
        seconds = self.heard - self.joined
        mean = self.answered / seconds if self.answered and seconds else None
        rows = self.unanswered - self.give_back
        return Load(rows, self.heard, self.speed.pace or mean, self.slots, self.at_once)

    def remove(self, rows: Ordinals) -> Ordinals:
        """Take rows from what it holds. Returns those that it held."""
        gone = np.isin(self.holds, rows)
        removed, self.holds = self.holds[gone], self.holds[~gone]
        return removed


class PullQueue:
    """Every row is with one living replica at a time, until it is finished."""

    def __init__(self, pieces: RowIndex) -> None:
        self._replicas: dict[str, _Replica] = {}
        self._locations = ContentLocations(pieces)
        self.free = PendingRows(pieces, self._locations)
        self._speeds = Speeds()
        self._ahead: dict[str, int] = {}
        """Rows that replicas may give back and were not told to, where there are some."""
        self._search = PoisonSearch()
        self._unanswered = 0
        self._row_bytes = pieces.total_bytes / max(1, self.free.count)
        self.starting = 0
        """Replicas whose engine is not ready yet: rows beyond a replica's slots are left for them."""
        self.coming = 0
        """Replicas that will join within seconds: their share is left for them."""
        self.unfinished = self.free.count

    @property
    def is_finished(self) -> bool:
        """Whether every row is written."""
        return self.unfinished == 0

    @property
    def has_rows_for_another(self) -> bool:
        """Whether one more replica would get rows: free or suspected ones, or some that others give back."""
        return bool(
            self.free.count
            or self._search.groups
            or len(self._search.poison)
            or self._ahead
            or any(one.give_back for one in self._replicas.values())
        )

    @property
    def replicas(self) -> tuple[str, ...]:
        """The living replicas."""
        return tuple(self._replicas)

    def join(self, name: str, slots: int, now: float, on_probation: bool = False) -> None:
        """A replica's engine is ready.

        :param name: of its process: one that is started again has another name.
        :param slots: rows that its engine runs at once.
        :param on_probation: whether its earlier processes have died without a finished row. Then it gets a
            single row, alone and as a suspected one: where every row kills, halving would not end.
        :raises ValueError: the name is taken, or there are no slots.
        """
        if name in self._replicas or slots < 1:
            raise ValueError(
                f"replica {name!r} with {slots} slots: give each process its own name and a slot."
            )
        self._replicas[name] = _Replica(slots, slots, now, now, Speed(slots, now), on_probation=on_probation)
        self._speeds.set(name, slots, None)

    def pull(self, name: str, now: float, report: PullRequest | None = None) -> Assignment:
        """A replica reports, and gets rows. Raises :class:`StaleReplicaError` if it was taken for lost."""
        replica = self._replica(name)
        self._count(name, replica, now, report or PullRequest())
        share, soon = (self._speeds.share(name, self.coming + more) for more in (0, self.starting))
        free, pace = self.free.count, replica.speed.pace
        most, ask_below, has_share = prefetch_target(
            replica.slots, pace, share, soon, free, free + self._unanswered, self._row_bytes
        )
        is_test = (
            replica.group is not None
            or replica.on_probation
            or self._search.claims(name, not len(replica.holds), now)
        )
        failed, self._search.poison = self._search.poison, no_rows()
        replica.failed = np.concatenate([replica.failed, failed])
        rows = self._next_group(name, replica) if is_test else self.free.take(name, most - replica.unanswered)
        given = np.concatenate([failed, rows])
        if len(given):
            replica.waits_until = 0.0
            replica.holds = np.sort(np.concatenate([replica.holds, given]))
            replica.given += len(given)
        borrow, put = self._locations.give(name, given)
        if not self.free.count:
            ask_below = min(ask_below, replica.at_once)
            if others := self._ahead.keys() - {name}:
                ask_below = replica.at_once + math.ceil(EARLY_SECONDS * (replica.load.pace or 0.0))
                if not is_test and replica.unanswered < ask_below and now >= replica.waits_until:
                    self._rebalance(now, replica, most, others)
        give_back, replica.give_back = replica.give_back, 0
        self._update(name, replica)
        return Assignment(
            rows=rows,
            borrow=borrow,
            put=put,
            isolated=replica.group is not None,
            failed=failed,
            release=self._locations.released(name),
            give_back=give_back,
            flush=is_test,
            ask_below=ask_below,
            has_share=(has_share or not self.free.count) and not is_test,
            is_finished=self.is_finished,
        )

    def give_back(self, name: str, rows: Ordinals) -> tuple[int, ...]:
        """A replica gives back rows that it has not begun. Returns their pieces that it must share."""
        replica = self._replica(name)
        if replica.group is not None:
            return ()
        returned = replica.remove(rows[~np.isin(rows, replica.failed)])
        replica.given -= len(returned)
        self.free.put_back(returned)
        self._update(name, replica)
        return self._locations.lend(name, returned)

    def finish(self, name: str, rows: Ordinals, proves: bool = True) -> None:
        """A replica has written rows; see :class:`PullRequest` for `proves`."""
        replica = self._replica(name)
        finished = replica.remove(rows)
        self.unfinished -= len(finished)
        if proves and not np.isin(finished, replica.failed).all():
            replica.on_probation = False
        replica.failed = replica.failed[np.isin(replica.failed, replica.holds)]

    def proves(self, name: str, finished: Ordinals) -> bool:
        """Whether the engine has answered one of these rows: to write one that kills it takes no engine."""
        return name in self._replicas and not np.isin(finished, self._replicas[name].failed).all()

    def may_ask_for_lost(self) -> bool:
        """Whether a replica may ask what it waits for, since a lost one asked it.

        As long as rows of lost replicas are free or suspected, one of them will ask, or kill the engine.
        But suspected rows wait for an empty engine: in vain where all replicas wait for such rows.
        """
        replicas = self._replicas.values()
        if len(self._search.poison) or any(len(one.failed) for one in replicas):
            return False  # what kills an engine is about to be written
        if not (self.free.count or self._search.groups):
            return True
        return not (self.starting or self.coming) and all(one.is_blocked for one in replicas)

    def is_open(self, piece: int) -> bool:
        """Whether rows of a piece that was opened must still be given out."""
        return self._locations.is_open(piece)

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
            self._search.groups.appendleft(Group(replica.holds, replica.group.silent_deaths))
            self._locations.reopen(replica.remove(replica.holds))
        self._forget(name)

    def lost(self, name: str, now: float, engine_died: bool = False, begun: Begun | None = None) -> bool:
        """A replica is gone: its process, its node, or its engine. Does nothing where that is known already.

        :param engine_died: whether it reported that its engine ended by itself.
        :param begun: what it had begun, where that is known; else all that it had is suspected.
        :returns: whether it has died of a single row, which is to blame.
        """
        if name not in self._replicas:
            return False
        search, replica = self._search, self._replicas[name]
        failed = replica.remove(replica.failed)
        search.poison = np.concatenate([search.poison, failed])
        blamed = len(search.poison)
        suspects = replica.remove(replica.holds if begun is None else begun.in_engine)
        prepared = no_rows() if begun is None else replica.remove(begun.in_preparation)
        self._locations.reopen(np.concatenate([failed, suspects, prepared]))
        if replica.group is None:
            search.begin(suspects, prepared, now)
        else:
            group = Group(np.concatenate([suspects, prepared]), replica.group.silent_deaths)
            waiting = replica.remove(replica.holds)
            self._locations.reopen(waiting)
            search.died(group, waiting, engine_died, now)
        self._forget(name)
        return len(search.poison) > blamed

    def _replica(self, name: str) -> _Replica:
        if name not in self._replicas:
            raise StaleReplicaError(f"replica {name!r} was taken for lost; its rows are others' now.")
        return self._replicas[name]

    def _count(self, name: str, replica: _Replica, now: float, report: PullRequest) -> None:
        replica.heard = now
        replica.answered = max(replica.answered, report.answered)
        replica.at_once = replica.slots if report.at_once is None else min(report.at_once, replica.slots)
        replica.waiting = report.waiting
        self.finish(name, report.finished, report.proves)
        if not len(replica.holds):
            replica.group = None
        is_full = replica.at_once == replica.slots and 2 * replica.unanswered >= replica.slots
        replica.speed.sample(now, replica.answered, report.work, is_full)
        self._speeds.set(name, replica.slots, replica.speed.rate)
        self._update(name, replica)

    def _rebalance(self, now: float, replica: _Replica, most: int, others: Set[str]) -> None:
        """Let the one with most to give return rows, so that both end together.

        :param most: rows that the replica would hold then; more would go back and forth.
        :param others: those with rows ahead.
        """
        own, lacks = replica.load, most - replica.unanswered
        looked_at = heapq.nlargest(_LOOKED_AT, others, key=self._ahead.__getitem__)
        rows = {other: to_move(now, own, self._replicas[other].load) for other in looked_at}
        if not any(rows.values()):
            rows = {looked_at[0]: to_fill(own, self._ahead[looked_at[0]])}
        richest = max(rows, key=rows.__getitem__)
        count = min(lacks, rows[richest])
        if count > 0:
            replica.waits_until = now + EARLY_SECONDS
            self._replicas[richest].give_back += count
            self._update(richest, self._replicas[richest])

    def _update(self, name: str, replica: _Replica) -> None:
        """Keep the sum of unanswered rows, and which replicas have rows ahead."""
        self._unanswered += replica.unanswered - replica.counted
        replica.counted = replica.unanswered
        # What waits for another row's answer can't be given back.
        ahead = replica.given - replica.answered - replica.waiting - replica.at_once - replica.give_back
        if ahead > 0 and replica.group is None:
            self._ahead[name] = ahead
        else:
            self._ahead.pop(name, None)

    def _next_group(self, name: str, replica: _Replica) -> Ordinals:
        """The next suspected rows, if its engine is empty."""
        if len(replica.holds) or len(replica.failed):
            return no_rows()
        if not replica.on_probation:
            replica.group = self._search.groups.popleft()
            return replica.group.rows
        row = self.free.take(name, 1)
        replica.group = Group(row) if len(row) else self._search.last_row()
        return no_rows() if replica.group is None else replica.group.rows

    def _forget(self, name: str) -> None:
        """Forget a replica, and free what it had."""
        replica = self._replicas.pop(name)
        self._unanswered -= replica.counted
        self._ahead.pop(name, None)
        self._speeds.drop(name)
        self._locations.drop(name)
        self._search.drop(name)
        self.free.drop(name)
        self.free.put_back(replica.holds)
