# SPDX-License-Identifier: Apache-2.0
"""Find the row that crashes the engine, by bisecting the rows that were in flight.

A crash ends all rows in flight, and does not show which row caused it. Ray restarts the replica and repeats
its chunks; this module tells them which of their rows are suspects, and which half of all suspects they
belong to. The halves run one after the other, each alone in the engine, and the half that crashes is bisected
again, until a single row is left. So a poison row costs at most ceil(log2(rows in flight)) + 1 restarts, and
at least two: one for the first crash, and one for each bisection. A crash that no row caused (a lost node, an
operator's SIGKILL) costs no extra restart, and no more time than the two halves take: the suspects pass. If
it happens during a search, the search may start again.

A replica reports when its engine ended by itself. If it could not, or the engine was killed, there is a cause
outside the rows: a lost node, a user, or a system out of memory. A row may cause the last one. So a row is
blamed for its second crash if the engine ended by itself, and otherwise for the fourth crash in which it was
alone.

If every row crashes, a search is useless. After two crashes in a row without a finished row, single rows are
tried, and after `max_restarts` of them without success the job fails: at most after two crashes, and two more
for each of the `max_restarts`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

_DEATHS_BEFORE_SINGLE_ROWS = 2
_KILLS_OF_A_ROW = 4
"""Crashes without a report, with the same row alone in the engine, after which the row is blamed."""


@dataclass
class Record:
    """What is known of a chunk that a replica has begun and not finished.

    :param process: of the replica that has it.
    :param asked: positions of the rows that are in the engine now.
    :param first: of them, once that process is gone, those in the first half of all that it had.
    :param alone: whether no others are.
    :param tested: whether they are there because they are suspects.
    :param kills: once that process is gone, see :class:`Suspicion`.
    """

    process: str
    asked: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    alone: bool = False
    tested: bool = False
    kills: int = 0

    @property
    def is_proven(self) -> bool:
        """Whether its process crashed with this row alone in the engine, and no kill explains it."""
        return self.alone and self.tested and len(self.asked) == 1 and not _may_be_kills(self.kills)


@dataclass(frozen=True)
class Suspicion:
    """What a replica must know of a chunk that it begins.

    :param repeated: whether a process that is gone had begun it, or even ended it, so that rows of it may be
        written already.
    :param asked: positions that were in the engine when that process died.
    :param first: of them, those in the first half of all that were.
    :param process: the process that died with them.
    :param alone: whether nothing else was.
    :param tested: whether they had been suspects already.
    :param deaths: deaths of this replica since it last finished a row.
    :param kills: how many processes in a row ended from outside with exactly these rows in the engine; 0
        where the engine ended by itself.
    """

    repeated: bool = False
    asked: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    process: str = ""
    alone: bool = False
    tested: bool = False
    deaths: int = 0
    kills: int = 0


@dataclass(frozen=True)
class Group:
    """Rows of a chunk that are tried next.

    :param rows: their positions.
    :param name: groups of the same name may share the engine; ``None`` if no row is suspected.
    :param tested: whether they are suspects.
    """

    rows: tuple[int, ...]
    name: Hashable = None
    tested: bool = False


class Suspects:
    """Crash records, kept outside the replicas so that they survive a crash."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._deaths: dict[str, int] = {}
        self._found: dict[str, int] = {}
        self._processes: dict[str, set[str]] = {}
        self._known_dead: set[str] = set()
        self._aborted: set[str] = set()
        self._told: dict[int, Suspicion] = {}
        self._explained: set[str] = set()
        """Processes that died of rows of which another has died since: what else they had is cleared."""
        self._ended: set[int] = set()

    def start(self, replica: str, process: str) -> int:
        """A replica's process starts. Its earlier processes are gone, and their late messages are ignored.

        :param replica: stays the same when Ray starts its process again.
        :returns: how often it failed without a finished row: crashes in a row, or single rows in a row that
            crashed it.
        """
        self._deaths[replica] = self._deaths.get(replica, -1) + 1
        own = self._processes.setdefault(replica, set())
        for earlier in own:
            self._bury(earlier)
        own.add(process)
        found = self._found.get(replica, 0)
        # A crash counts until the row that caused it is known.
        return max(self._deaths[replica] - found - 1, found)

    def begin(self, item: int, replica: str, process: str) -> Suspicion:
        """A replica begins a chunk: for the first time, or since the process that had it is gone."""
        # With a killer found and nothing finished since, the engine must show first that it works at all.
        least = _DEATHS_BEFORE_SINGLE_ROWS if self._found.get(replica) else 0
        deaths = max(least, self._deaths.get(replica, 0))
        known = self._records.get(item)
        if process in self._known_dead:  # it had asked before it ended
            return Suspicion(repeated=True)
        if known is not None and known.process != process:
            self._bury(known.process)
        self._records[item] = Record(process)
        if known is None:
            # One that has ended comes again where its process died before Ray had its answer.
            told = Suspicion(item in self._ended)
        elif known.asked:
            told = Suspicion(
                True, known.asked, known.first, known.process, known.alone, known.tested, kills=known.kills
            )
        else:
            # Not in the engine when its process ended: suspected as before, unless others have done it.
            told = replace(self._told[item], repeated=True)
            if told.process in self._explained:
                told = Suspicion(True)
        self._told[item] = told
        return replace(told, deaths=deaths)

    def ask(self, item: int, process: str, positions: Sequence[int], tested: bool) -> None:
        """These rows of a chunk go into the engine; suspects go alone."""
        if self._has(item, process):
            record = self._records[item]
            record.asked, record.alone, record.tested = tuple(positions), tested, tested

    def aborted(self, process: str) -> None:
        """The engine of a process ended by itself, and the process is about to end."""
        self._aborted.add(process)

    def is_gone(self, process: str) -> bool:
        """Whether another process has taken its place."""
        return process in self._known_dead

    def passed(self, item: int, process: str) -> None:
        """The rows that went in have come out; the chunk may wait for the turn of its others."""
        if self._has(item, process):
            record = self._records[item]
            self._told[item] = narrowed(self._told[item], record.asked)
            record.asked = ()

    def finished(self, replica: str) -> None:
        """Rows were finished: the engine works."""
        self._deaths[replica] = self._found[replica] = 0

    def end(self, item: int, process: str) -> None:
        """A chunk is written."""
        self._ended.add(item)
        if self._has(item, process):
            del self._records[item], self._told[item]

    def _has(self, item: int, process: str) -> bool:
        """Whether a process has a chunk. Its messages may come after its end, when another process has it."""
        record = self._records.get(item)
        return record is not None and record.process == process and process not in self._known_dead

    def _bury(self, process: str) -> None:
        if process in self._known_dead:
            return
        self._known_dead.add(process)
        asking = sorted(
            (item, record)
            for item, record in self._records.items()
            if record.process == process and record.asked
        )
        left = (sum(len(record.asked) for _, record in asking) + 1) // 2
        for item, record in asking:
            if record.tested and not set(record.asked).isdisjoint(self._told[item].asked):
                self._explained.add(self._told[item].process)
            record.alone = len(asking) == 1
            record.first = record.asked[: max(0, left)]
            left -= len(record.asked)
            record.kills = 0 if process in self._aborted else 1 + self._kills_before(item, record)
            if record.is_proven:
                replica = next(name for name, own in self._processes.items() if process in own)
                self._found[replica] = self._found.get(replica, 0) + 1

    def _kills_before(self, item: int, record: Record) -> int:
        told = self._told[item]
        return told.kills if record.alone and told.alone and told.asked == record.asked else 0


def _may_be_kills(kills: int) -> bool:
    return 0 < kills < _KILLS_OF_A_ROW


def next_group(pending: Sequence[int], suspicion: Suspicion) -> Group:
    """The rows to try next, out of those of a chunk that are not finished.

    :param pending: positions, at least one, in order.
    """
    asked, in_first = set(suspicion.asked), set(suspicion.first)
    suspected = [position for position in pending if position in asked]
    others = [position for position in pending if position not in asked]
    if suspicion.deaths >= _DEATHS_BEFORE_SINGLE_ROWS:
        # Treated as a suspect: if only poison rows are left, the search would not end otherwise.
        return Group(((others or suspected)[-1],), object(), tested=True)
    if not suspected:
        return Group(tuple(pending))
    first = tuple(position for position in suspected if position in in_first)
    return Group(first or tuple(suspected), (suspicion.process, bool(first)), tested=True)


def narrowed(suspicion: Suspicion, passed: Sequence[int]) -> Suspicion:
    """What is suspected after a group has passed: the engine lives, and the rest of the suspects remain.

    If one half has passed, the other half caused the crash and need not crash as a whole again, unless the
    engine was killed from outside. So the remaining rows are not tested yet.
    """
    done = set(passed)
    left = tuple(position for position in suspicion.asked if position not in done)
    return replace(suspicion, asked=left, tested=False, deaths=0)


def poison(suspicion: Suspicion, pending: Sequence[int]) -> int | None:
    """The position of the row that kills the engine, if it is found.

    Either the engine ended by itself with this row alone, after an earlier crash, or the process ended from
    outside several times: a row that was alone by chance when the engine was killed is not blamed.

    :param pending: positions of the chunk's rows that are not finished.
    """
    asked = set(suspicion.asked)
    suspected = [position for position in pending if position in asked]
    found = (
        suspicion.alone and suspicion.tested and len(suspected) == 1 and not _may_be_kills(suspicion.kills)
    )
    return suspected[0] if found else None
