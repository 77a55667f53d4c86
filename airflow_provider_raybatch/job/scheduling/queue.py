# SPDX-License-Identifier: Apache-2.0
"""The pull queue: which replica works on which rows.

A replica asks when it can take rows (:meth:`PullQueue.pull`), and reports in the same call what it has
finished. docs/internals/scheduling.md tells which rows it gets, in which order. `row_index.py` knows which
rows no replica has, and where their content comes from; `prefetch_target.py` how many a replica gets, and
`replica_state.py` how many it gives back. What a replica held when it died is free at once, or suspected of
having killed the engine (`poison_search.py`).

The caller passes the time. A call costs array operations over the rows that it moves and that the replica
holds, and where no row is free a look at the sixteen replicas that hold most beyond what they let in.
"""

from __future__ import annotations

import numpy as np

from airflow_provider_raybatch.job.scheduling.messages import (
    Assignment,
    Begun,
    PullRequest,
    StaleReplicaError,
)
from airflow_provider_raybatch.job.scheduling.poison_search import Group, PoisonSearch
from airflow_provider_raybatch.job.scheduling.prefetch_target import (
    Speed,
    Speeds,
    prefetch_target,
)
from airflow_provider_raybatch.job.scheduling.replica_state import ReplicaState, ReplicaStates
from airflow_provider_raybatch.job.scheduling.row_index import (
    ContentLocations,
    Ordinals,
    PendingRows,
    RowIndex,
    no_rows,
)


class PullQueue:
    """Every row is with one living replica at a time, until it is finished."""

    def __init__(self, pieces: RowIndex) -> None:
        self._replicas = ReplicaStates()
        self._locations = ContentLocations(pieces)
        self.free = PendingRows(pieces, self._locations)
        self._speeds = Speeds()
        self._search = PoisonSearch()
        self._row_bytes = pieces.total_bytes / max(1, self.free.count)
        self.starting = 0
        """ReplicaStates whose engine is not ready yet: rows beyond a replica's slots are left for them."""
        self.coming = 0
        """ReplicaStates that will join within seconds: their share is left for them."""
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
            or self._replicas.ahead
            or any(one.owes for one in self._replicas.values())
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
        self._replicas[name] = ReplicaState(
            slots, slots, now, now, Speed(slots, now), on_probation=on_probation
        )
        self._speeds.set(name, slots, None)

    def pull(self, name: str, now: float, report: PullRequest | None = None) -> Assignment:
        """A replica reports, and gets rows. Raises :class:`StaleReplicaError` if it was taken for lost."""
        replica = self._replica(name)
        self._count(name, replica, now, report or PullRequest())
        share, soon = (self._speeds.share(name, self.coming + more) for more in (0, self.starting))
        free, pace = self.free.count, replica.speed.pace
        most, ask_below, has_share = prefetch_target(
            replica.slots, pace, share, soon, free, free + self._replicas.unanswered, self._row_bytes
        )
        is_test = (
            replica.group is not None
            or replica.on_probation
            or self._search.claims(name, not len(replica.holds), now)
        )
        failed, rows = self._search.take_poison(), no_rows()
        if not is_test:
            rows = self.free.take(name, most - replica.unanswered)
        elif not len(replica.holds) and not len(failed):
            rows = replica.isolate(self._next_group(name, replica.on_probation))
        borrow, put = self._locations.give(name, replica.take(rows, failed))
        if not self.free.count:
            ask_below = self._replicas.ask_of_others(name, now, None if is_test else most, ask_below)
        give_back = replica.take_owed()
        self._replicas.count(name)
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
        returned = replica.give_back(rows)
        self.free.put_back(returned)
        self._replicas.count(name)
        return self._locations.lend(name, returned)

    def finish(self, name: str, rows: Ordinals, proves: bool = True) -> None:
        """A replica has written rows; see :class:`PullRequest` for `proves`."""
        self.unfinished -= self._replica(name).finish(rows, proves)

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
        return name in self._replicas and self._replicas[name].owes > 0

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
        search.blame(failed)
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

    def _replica(self, name: str) -> ReplicaState:
        if name not in self._replicas:
            raise StaleReplicaError(f"replica {name!r} was taken for lost; its rows are others' now.")
        return self._replicas[name]

    def _count(self, name: str, replica: ReplicaState, now: float, report: PullRequest) -> None:
        self.unfinished -= replica.report(now, report)
        self._speeds.set(name, replica.slots, replica.speed.rate)
        self._replicas.count(name)

    def _next_group(self, name: str, on_probation: bool) -> Group | None:
        """The next suspected rows for an empty engine; for one on probation a single row."""
        if not on_probation:
            return self._search.groups.popleft()
        row = self.free.take(name, 1)
        return Group(row) if len(row) else self._search.last_row()

    def _forget(self, name: str) -> None:
        """Forget a replica, and free what it had."""
        replica = self._replicas.forget(name)
        self._speeds.drop(name)
        self._locations.drop(name)
        self._search.drop(name)
        self.free.drop(name)
        self.free.put_back(replica.holds)
