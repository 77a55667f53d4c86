# SPDX-License-Identifier: Apache-2.0
"""The pull queue's state of the replicas: which rows each holds, what it has reported, how fast it is."""

from __future__ import annotations

import heapq
import math
from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np

from airflow_provider_raybatch.job.scheduling.messages import MOST_WAITING, PullRequest
from airflow_provider_raybatch.job.scheduling.poison_search import Group
from airflow_provider_raybatch.job.scheduling.prefetch_target import (
    EARLY_SECONDS,
    Load,
    Speed,
    to_fill,
    to_move,
)
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, no_rows

_LOOKED_AT = 16
"""Of the replicas with rows to give back, those with most: a thousand would take milliseconds a call."""


@dataclass
class ReplicaState:
    """Queue state of one replica.

    :param at_once: rows that it lets into its engine now. What it has beyond them, it can give back.
    :param joined: seconds by the caller's clock; `heard` is its last report.
    :param given: rows it was ever given, less those it gave back.
    :param waiting: of its rows, those that wait for another row's answer.
    :param counted: its unanswered rows in the queue's sum.
    :param holds: unfinished rows, sorted; of them `failed` are to be written as failed.
    :param owes: rows that it is to give back with its next call.
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
    owes: int = 0
    group: Group | None = None
    on_probation: bool = False
    waits_until: float = 0.0

    @property
    def unanswered(self) -> int:
        """Rows without an answer; those that wait for another row count only beyond `MOST_WAITING` a slot."""
        return max(0, self.given - self.answered - min(self.waiting, MOST_WAITING * self.slots))

    @property
    def is_blocked(self) -> bool:
        """Whether all that it has waits for the answers of other rows."""
        return 0 < self.waiting >= self.given - self.answered

    @property
    def load(self) -> Load:
        """Its rows and its pace, to compare it with other replicas."""
        seconds = self.heard - self.joined
        mean = self.answered / seconds if self.answered and seconds else None
        rows = self.unanswered - self.owes
        return Load(rows, self.heard, self.speed.pace or mean, self.slots, self.at_once)

    @property
    def ahead(self) -> int:
        """Rows that it may give back and was not told to; 0 or less if it has none."""
        # What waits for another row's answer can't be given back.
        rows = self.given - self.answered - self.waiting - self.at_once - self.owes
        return rows if self.group is None else 0

    def report(self, now: float, report: PullRequest) -> int:
        """Count what it reports. Returns how many rows it has finished."""
        self.heard = now
        self.answered = max(self.answered, report.answered)
        self.at_once = self.slots if report.at_once is None else min(report.at_once, self.slots)
        self.waiting = report.waiting
        finished = self.finish(report.finished, report.proves)
        if not len(self.holds):
            self.group = None
        is_full = self.at_once == self.slots and 2 * self.unanswered >= self.slots
        self.speed.sample(now, self.answered, report.work, is_full)
        return finished

    def take(self, rows: Ordinals, failed: Ordinals) -> Ordinals:
        """Hold rows to run, and `failed` ones to write as failed. Returns both."""
        given = np.concatenate([failed, rows])
        if len(given):
            self.failed = np.concatenate([self.failed, failed])
            self.waits_until = 0.0
            self.holds = np.sort(np.concatenate([self.holds, given]))
            self.given += len(given)
        return given

    def isolate(self, group: Group | None) -> Ordinals:
        """Run a group without other rows. Returns its rows."""
        self.group = group
        return no_rows() if group is None else group.rows

    def finish(self, rows: Ordinals, proves: bool) -> int:
        """Rows are written; see :class:`PullRequest` for `proves`. Returns how many of them it held."""
        finished = self.remove(rows)
        if proves and not np.isin(finished, self.failed).all():
            self.on_probation = False
        self.failed = self.failed[np.isin(self.failed, self.holds)]
        return len(finished)

    def give_back(self, rows: Ordinals) -> Ordinals:
        """Return rows, but for those to write as failed."""
        returned = self.remove(rows[~np.isin(rows, self.failed)])
        self.given -= len(returned)
        return returned

    def remove(self, rows: Ordinals) -> Ordinals:
        """Take rows from what it holds. Returns those that it held."""
        gone = np.isin(self.holds, rows)
        removed, self.holds = self.holds[gone], self.holds[~gone]
        return removed

    def owe(self, rows: int) -> None:
        """It is to give back more rows, since another replica will be done earlier."""
        self.owes += rows

    def take_owed(self) -> int:
        """How many rows it is to give back now; each is asked for once."""
        owes, self.owes = self.owes, 0
        return owes

    def await_others(self, now: float) -> None:
        """Another replica is to give back rows for it; for a while it makes no other one do so."""
        self.waits_until = now + EARLY_SECONDS

    def recount(self) -> int:
        """How many unanswered rows it has more than when they were last counted."""
        before, self.counted = self.counted, self.unanswered
        return self.counted - before


class ReplicaStates(dict[str, ReplicaState]):
    """The living replicas by name.

    :ivar unanswered: rows that they have and have not answered, as they were last counted.
    :ivar ahead: rows that each may give back and was not told to, where there are some.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unanswered = 0
        self.ahead: dict[str, int] = {}

    def count(self, name: str) -> None:
        """Count a replica's rows again."""
        replica = self[name]
        self.unanswered += replica.recount()
        if (ahead := replica.ahead) > 0:
            self.ahead[name] = ahead
        else:
            self.ahead.pop(name, None)

    def forget(self, name: str) -> ReplicaState:
        """Take a replica out."""
        replica = self.pop(name)
        self.unanswered -= replica.counted
        self.ahead.pop(name, None)
        return replica

    def ask_of_others(self, name: str, now: float, most: int | None, ask_below: int) -> int:
        """Without free rows, a replica's next ones come from others: it asks earlier, and they return some.

        :param most: rows that the replica would hold then; more would go back and forth. ``None`` for one
            that tests rows, and takes none of others.
        :returns: the number of rows below which the replica asks again.
        """
        replica = self[name]
        others = self.ahead.keys() - {name}
        if not others:
            return min(ask_below, replica.at_once)
        ask_below = replica.at_once + math.ceil(EARLY_SECONDS * (replica.load.pace or 0.0))
        if most is not None and replica.unanswered < ask_below and now >= replica.waits_until:
            self._rebalance(now, replica, most, others)
        return ask_below

    def _rebalance(self, now: float, replica: ReplicaState, most: int, others: Set[str]) -> None:
        """Let the one with most to give return rows, so that both end together.

        :param others: those with rows ahead.
        """
        own, lacks = replica.load, most - replica.unanswered
        looked_at = heapq.nlargest(_LOOKED_AT, others, key=self.ahead.__getitem__)
        rows = {other: to_move(now, own, self[other].load) for other in looked_at}
        if not any(rows.values()):
            rows = {looked_at[0]: to_fill(own, self.ahead[looked_at[0]])}
        richest = max(rows, key=rows.__getitem__)
        count = min(lacks, rows[richest])
        if count > 0:
            replica.await_others(now)
            self[richest].owe(count)
            self.count(richest)
