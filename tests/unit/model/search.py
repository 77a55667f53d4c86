# SPDX-License-Identifier: Apache-2.0
"""Replicas, board, engines and Ray as steps: the real search of rows that kill, and everything around it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from types import SimpleNamespace
from typing import Any

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.execution.replica import replica as replica_module
from airflow_provider_raybatch.job.execution.replica.gate import Gate
from airflow_provider_raybatch.job.execution.replica.replica import Replica
from airflow_provider_raybatch.job.monitor.board import Board, ReplicaReport

from .stepped_loop import SteppedLoop

Row = tuple[int, int]
"""Number of a chunk, and a position in it."""
_AWAITED = {"begin", "ask", "aborted"}


class Ended(BaseException):
    """The end of a process."""


@dataclass(frozen=True)
class Scope:
    """How large the world is, and what happens in it.

    :param chunks: rows of each.
    :param replicas: which share the chunks in turn.
    :param slots: chunks that a replica works on at a time.
    :param killers: rows of which an engine ends by itself.
    :param hogs: rows of which the system kills the engine.
    :param kills: how many processes and engines somebody kills.
    :param node: whether a kill takes all replicas at once, and what they handed to Ray.
    :param fluke: whether it is no kill, but an engine that ends by itself of no row.
    :param restarts: `max_restarts`.
    """

    chunks: tuple[int, ...]
    replicas: int = 1
    slots: int = 2
    killers: frozenset[Row] = frozenset()
    hogs: frozenset[Row] = frozenset()
    kills: int = 0
    node: bool = False
    fluke: bool = False
    restarts: int = 3

    @property
    def rows(self) -> list[Row]:
        return [(number, position) for number, rows in enumerate(self.chunks) for position in range(rows)]

    def __str__(self) -> str:
        fields = {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in vars(self).items()
        }
        return ", ".join(f"{name} {value}" for name, value in fields.items() if value)

    @property
    def deadly(self) -> frozenset[Row]:
        return self.killers | self.hogs

    @property
    def bound(self) -> int:
        """Restarts that a row takes to be found."""
        return max(2, math.ceil(math.log2(sum(sorted(self.chunks)[-self.slots :]))) + 1)


class Stepped(Replica):
    """A replica without Ray, storage and engine: what it asks for is a step of the world."""

    def __init__(self, world: World, actor: int, life: int) -> None:
        self.world, self.actor, self.loop = world, actor, SteppedLoop()
        self._actor, self._process = f"r{actor}", f"r{actor}p{life}"
        self._board = SimpleNamespace(**{
            name: SimpleNamespace(remote=self._sending(name))
            for name in ("begin", "ask", "aborted", "passed", "finished", "end")
        })
        self._draining = SimpleNamespace(is_set=lambda: False)  # type: ignore[assignment]
        self._gate = Gate()
        self._asking = self._dying = 0
        self._report = ReplicaReport(self._process, "node")
        self.outbox: list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]] = []
        self.opening: dict[int, asyncio.Future[None]] = {}
        self.engine: dict[int, tuple[list[int], asyncio.Future[None]]] = {}
        """Of each chunk, the rows in the engine that have no answer yet."""
        self.death: EngineDeadError | None = None
        self.items: dict[int, asyncio.Task[Any]] = {}

    def _sending(self, name: str) -> Callable[..., asyncio.Future[Any]]:
        def send(*arguments: Any) -> asyncio.Future[Any]:
            future = self.loop.create_future()
            self.outbox.append((name, arguments, future))
            return future

        return send

    async def _thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def _open(self, item: Any, watch: Any) -> Any:
        future = self.opening[item.number] = self.loop.create_future()
        await future
        return SimpleNamespace(item=item, asked=dict.fromkeys(range(item.rows)))

    def _written(self, item: Any) -> list[Any]:
        return [position for number, position in self.world.parts if number == item.number]

    def _positions(self, item: Any, written: Sequence[Any]) -> set[int]:
        return set(written)

    async def _answer(self, chunk: Any, positions: Sequence[int], watch: Any) -> list[Any]:
        number = chunk.item.number
        if self.death is not None:
            raise self.death
        future = self.loop.create_future()
        self.engine[number] = (list(positions), future)
        await future
        return []

    async def _write(self, chunk: Any, results: Any, watch: Any) -> list[Any]:
        for position in results:
            self.world.blame((chunk.item.number, position))
        return []

    def _done(self, written: Any, watch: Any) -> Any:
        return None

    def spawn(self, number: int, rows: int) -> None:
        self.items[number] = self.loop.start(self._do(SimpleNamespace(number=number, rows=rows)))  # type: ignore[arg-type]

    def deliver(self) -> None:
        """Up to the next message whose sender waits for an answer."""
        while self.outbox:
            name, arguments, future = self.outbox.pop(0)
            answer = getattr(self.world.board, name)(*arguments)
            if name in _AWAITED:
                future.set_result(answer)
                return

    def answered(self, number: int) -> None:
        left, future = self.engine[number]
        position = next(one for one in left if (number, one) not in self.world.scope.deadly)
        left.remove(position)
        self.world.write((number, position))
        self._board.finished.remote(self._actor)
        if not left:
            del self.engine[number]
            future.set_result(None)

    def die(self, killed: bool) -> None:
        self.death = EngineDeadError("the engine died", killed)

    def fail(self, number: int) -> None:
        _, future = self.engine.pop(number)
        future.set_exception(self.death or AssertionError)

    def state(self) -> Any:
        order = {id(task._fut_waiter): number for number, task in self.items.items()}  # type: ignore[attr-defined]
        return (
            self._process,
            tuple((name, arguments) for name, arguments, _ in self.outbox),
            tuple(sorted(self.opening)),
            tuple(sorted((number, tuple(left)) for number, (left, _) in self.engine.items())),
            self.death is None or self.death.killed,
            len(self.loop.timers),
            (self._asking, self._dying, _plain(self._gate._group), self._gate._inside, self._gate._waiting),
            tuple(order[id(waiter)] for waiter in self._gate._changed._waiters),  # type: ignore[attr-defined]
            tuple(sorted((number, _frame(task)) for number, task in self.items.items())),
        )


def _plain(name: Any) -> Any:
    return "single" if type(name) is object else name


def _frame(task: asyncio.Task[Any]) -> Any:
    frame = task.get_coro().cr_frame  # type: ignore[union-attr]
    if frame is None:
        return None
    local = frame.f_locals
    group = local.get("group")
    return (
        frame.f_lasti,
        astuple(local["suspicion"]) if "suspicion" in local else None,
        tuple(local.get("pending", ())),
        (group.rows, _plain(group.name), group.tested) if group is not None else None,
    )


@dataclass
class World:
    """What Ray does, and what is known from outside."""

    scope: Scope
    board: Board = field(default_factory=Board)
    parts: list[Row] = field(default_factory=list)
    blamed: set[Row] = field(default_factory=set)
    deaths: int = 0
    kills: int = 0
    killed: int = 0
    """Processes and engines that were killed: several with a node."""
    failed: bool = False
    told: set[int] = field(default_factory=set)
    """Chunks whose end Ray knows."""
    late: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lives: Counter[int] = Counter()
        self.replicas: dict[int, Stepped | None] = dict.fromkeys(range(self.scope.replicas))
        for actor in self.replicas:
            self.restart(actor)

    def write(self, row: Row) -> None:
        assert row not in self.parts, f"{row} is answered twice"
        self.parts.append(row)

    def blame(self, row: Row) -> None:
        assert row in self.scope.deadly, f"{row} is innocent"
        self.write(row)
        self.blamed.add(row)

    # What may happen.

    def options(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Steps, and what comes from outside."""
        steps: list[tuple[Any, ...]] = [(self._late,)] if self.late else []
        faults: list[tuple[Any, ...]] = []
        for actor, replica in self.replicas.items():
            if replica is None:
                steps.append((self.restart, actor))
                continue
            if self.kills < self.scope.kills and not self.is_over:
                faults += self._kills(actor, replica)
            if any(name in _AWAITED for name, *_ in replica.outbox):
                # At once: who shall be later is longer in opening its chunk.
                steps.append((replica.deliver,))
                continue
            steps += [(self._opened, replica, number) for number in sorted(replica.opening)]
            steps += [(replica.loop.fire,)] * bool(replica.loop.timers)
            inside = {(number, one) for number, (left, _) in replica.engine.items() for one in left}
            if replica.death is not None:
                steps += [(replica.fail, number) for number in sorted(replica.engine)]
            else:
                steps += [
                    (replica.answered, number)
                    for number, (left, _) in sorted(replica.engine.items())
                    if any((number, one) not in self.scope.deadly for one in left)
                ]
                steps += [(replica.die, False)] * bool(inside & self.scope.killers)
                steps += [(replica.die, True)] * bool(inside & self.scope.hogs)
        return steps, faults

    def _kills(self, actor: int, replica: Stepped) -> list[tuple[Any, ...]]:
        if self.scope.fluke:
            return [(self._kill_engine, replica, False)] * bool(replica.engine and replica.death is None)
        if self.scope.node:
            return [(self._lose_node,)] if actor == min(a for a, one in self.replicas.items() if one) else []
        outbox = len(replica.outbox)
        kills: list[tuple[Any, ...]] = [
            (self._kill, actor, arrived, late)
            for arrived in range(outbox + 1)
            for late in ([False, True] if arrived < outbox else [False])
        ]
        if replica.engine and replica.death is None:
            kills.append((self._kill_engine, replica))
        return kills

    def _kill(self, actor: int, arrived: int, late: bool) -> None:
        """SIGKILL of a replica: of its last messages some arrive, and the others never or much later."""
        self.kills += 1
        self.killed += 1
        replica = self.replicas[actor]
        assert replica is not None
        messages = [(name, arguments) for name, arguments, _ in replica.outbox]
        for name, arguments in messages[:arrived]:
            getattr(self.board, name)(*arguments)
        self.late += messages[arrived:] if late else []
        self._end(actor, repeated=late)

    def _kill_engine(self, replica: Stepped, killed: bool = True) -> None:
        self.kills += 1
        self.killed += 1
        replica.die(killed)

    def _lose_node(self) -> None:
        self.kills += 1
        self.told.clear()
        for actor, replica in self.replicas.items():
            if replica is not None:
                self.killed += 1
                self._end(actor, repeated=True)

    def _end(self, actor: int, repeated: bool = False) -> None:
        """:param repeated: whether Ray repeats a chunk that has ended, since it did not get the answer."""
        replica = self.replicas[actor]
        assert replica is not None
        replica.loop.end()
        ended = [number for number in replica.items if number in self.told]
        self.told -= set(ended[-1:]) if repeated else set()
        self.replicas[actor] = None
        self.deaths += 1

    def _late(self) -> None:
        for name, arguments in self.late:
            getattr(self.board, name)(*arguments)
        self.late.clear()

    def _opened(self, replica: Stepped, number: int) -> None:
        replica.opening.pop(number).set_result(None)

    def restart(self, actor: int) -> None:
        """Ray starts an actor's process (again), and repeats its chunks."""
        replica = Stepped(self, actor, self.lives[actor])
        self.lives[actor] += 1
        self.replicas[actor] = replica
        if self.board.start(replica._actor, replica._process) > self.scope.restarts:
            self.failed = True
            return
        self._fill(actor, replica)

    def _fill(self, actor: int, replica: Stepped) -> None:
        for number, rows in enumerate(self.scope.chunks):
            running = sum(not task.done() for task in replica.items.values())
            mine = number % self.scope.replicas == actor
            if mine and running < self.scope.slots and number not in self.told | set(replica.items):
                replica.spawn(number, rows)
        replica.loop.run()

    @property
    def is_over(self) -> bool:
        return self.failed or len(self.told) == len(self.scope.chunks)

    def do(self, step: tuple[Any, ...]) -> None:
        what, *arguments = step
        what(*arguments)
        for actor, replica in list(self.replicas.items()):
            if replica is None or self.failed:
                continue
            replica.loop.run()
            for number, task in replica.items.items():
                if task.done():
                    error = task.exception()
                    if isinstance(error, Ended):
                        self._end(actor)
                        break
                    if error is not None:
                        raise error
                    self.told.add(number)
            else:
                self._fill(actor, replica)

    def close(self) -> None:
        for replica in self.replicas.values():
            if replica is not None:
                replica.loop.end()

    def state(self) -> Any:
        board = self.board
        return (
            tuple(sorted((number, astuple(record)) for number, record in board._records.items())),
            tuple(sorted((number, astuple(told)) for number, told in board._told.items())),
            tuple(sorted(board._deaths.items())),
            tuple(sorted(board._found.items())),
            frozenset(board._known_dead),
            frozenset(board._aborted),
            frozenset(board._explained),
            frozenset(board._ended),
            tuple(None if one is None else one.state() for one in self.replicas.values()),
            tuple(self.late),
            frozenset(self.parts),
            frozenset(self.told),
            self.deaths,
            self.kills,
        )


def patched(patch: Any) -> None:
    """The end of a replica's process ends the model's."""

    def end(status: int) -> None:
        raise Ended

    patch.setattr(replica_module.os, "_exit", end)


__all__ = ["Ended", "RaybatchError", "Scope", "World", "patched"]
