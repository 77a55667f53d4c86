# SPDX-License-Identifier: Apache-2.0
"""Who asks which request: each distinct one is asked once, by the replica that claims its key first.

All others wait for its answer, and are told where that lies as soon as it is written. A row whose process is
lost is in the queue again, and claims its key anew; those that wait go on waiting for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_Keys: TypeAlias = npt.NDArray[np.bytes_]
"""Of 16 bytes each."""
_Numbers: TypeAlias = npt.NDArray[np.int64]
_UNKNOWN = -1


class AnsweredKeys:
    """Keys that have answers, and the number of each answer's place: 12 bytes a key.

    Only half of a key is kept. Among 10**8 keys, two have one half in common once in 3,700 cases; who reads
    an answer looks for the whole key.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]] = []
        """Sorted; each is at least twice as long as the next one, so there are few."""

    def add(self, keys: _Keys, number: int) -> None:
        """Keys have answers at a place."""
        halves = np.unique(_halves(keys))
        numbers: npt.NDArray[np.int32] = np.full(len(halves), number, np.int32)
        while self._runs and len(self._runs[-1][0]) < 2 * len(halves):
            earlier = self._runs.pop()
            halves, numbers = (np.concatenate(both) for both in zip((halves, numbers), earlier, strict=True))
            order = np.argsort(halves, kind="stable")  # of equal keys, the newest is found
            halves, numbers = halves[order], numbers[order]
        self._runs.append((halves, numbers))

    def places(self, keys: Sequence[bytes]) -> _Numbers:
        """The number of each key's place; -1 for a key without an answer."""
        wanted = _halves(_array(keys))
        found: _Numbers = np.full(len(wanted), _UNKNOWN, np.int64)
        for halves, numbers in self._runs:
            at = np.minimum(np.searchsorted(halves, wanted), len(halves) - 1)
            there = halves[at] == wanted
            found[there] = numbers[at[there]]
        return found


def _array(keys: Sequence[bytes]) -> _Keys:
    return np.frombuffer(b"".join(keys), "S16")


def _halves(keys: _Keys) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(keys).view(np.uint64)[::2]


class Claims:
    """The requests of a run that are asked, or have answers. `process` is the name of a replica's process."""

    def __init__(self) -> None:
        self._owners: dict[bytes, str] = {}
        self._waiting: dict[bytes, list[str]] = {}
        self._awaited: Counter[str] = Counter()
        """How many keys of each process others wait for."""
        self._abandoned: dict[bytes, None] = {}
        """Keys that some wait for, and whose process is gone."""
        self._answered = AnsweredKeys()
        self._places: list[Any] = []
        self._to_tell: dict[str, list[tuple[bytes, Any]]] = {}
        self._early: dict[bytes, None] | None = None
        """Keys that were claimed before it was known which have answers; ``None`` where that is known."""
        self._given: dict[str, list[bytes]] = {}
        """Of these, those that a process asks and does not know of yet."""

    def hold(self) -> None:
        """Let all wait until :meth:`go_on`: answers are there that are not known yet."""
        self._early = {}

    def know(self, place: Any, keys: _Keys) -> None:
        """Requests had their answers before."""
        if len(keys):
            self._answered.add(keys, len(self._places))
            self._places.append(place)

    def go_on(self) -> None:
        """All answers are known that were there before."""
        early, self._early = list(self._early or ()), None
        for key, number in zip(early, self._answered.places(early).tolist() if early else (), strict=True):
            waiting = self._waiting.pop(key, [])
            if number != _UNKNOWN:
                for process in waiting:
                    self._to_tell.setdefault(process, []).append((key, self._places[number]))
            elif waiting:
                first = waiting[0]
                self._waiting[key] = waiting
                self._own(first, key)
                self._given.setdefault(first, []).append(key)

    def claim(self, process: str, keys: Sequence[bytes]) -> list[Any]:
        """What a process does with requests.

        :param keys: of 16 bytes, each once.
        :returns: for each key `True` if the process asks it, `False` if it waits for :meth:`news`, or else
            the place of its answer.
        """
        if not keys:
            return []
        if self._early is not None:
            self._early.update(dict.fromkeys(keys))
            for key in keys:
                waiting = self._waiting.setdefault(key, [])
                waiting += [] if process in waiting else [process]
            return [False] * len(keys)
        return [
            self._places[place] if place != _UNKNOWN else self._claim(process, key)
            for key, place in zip(keys, self._answered.places(keys).tolist(), strict=True)
        ]

    def _claim(self, process: str, key: bytes) -> bool:
        owner = self._owners.get(key)
        if owner is None:
            self._own(process, key)
            return True
        waiting = self._waiting.setdefault(key, [])
        self._awaited[owner] += not waiting
        if process not in waiting:
            waiting.append(process)
        return False

    def _own(self, process: str, key: bytes) -> None:
        """A process asks a request, for which it waits no more."""
        self._owners[key] = process
        self._abandoned.pop(key, None)
        if key in self._waiting:
            left = [one for one in self._waiting.pop(key) if one != process]
            if left:
                self._waiting[key] = left
                self._awaited[process] += 1

    def answered(self, place: Any, keys: Sequence[bytes]) -> None:
        """Requests have their answers, or have failed; whoever waits is told.

        :param place: where these lie.
        """
        if not keys:
            return
        self.know(place, _array(keys))
        for key in keys:
            owner = self._owners.pop(key, None)
            if not self._waiting:  # as mostly: then none is abandoned either
                continue
            self._abandoned.pop(key, None)
            waiting = self._waiting.pop(key, [])
            if waiting and owner is not None:
                self._awaited[owner] -= 1
            for process in waiting:
                self._to_tell.setdefault(process, []).append((key, place))

    def release(self, process: str, keys: Sequence[bytes]) -> None:
        """A process does not ask these after all: their rows are with others."""
        for key in keys:
            if self._owners.get(key) == process:
                del self._owners[key]
                if key in self._waiting:
                    self._awaited[process] -= 1
                    self._abandoned[key] = None

    def gone(self, process: str) -> None:
        """A process has ended: what it asked is free for others, and it waits for nothing."""
        for key in [key for key, owner in self._owners.items() if owner == process]:
            del self._owners[key]
        for known in (self._awaited, self._to_tell, self._given):
            known.pop(process, None)
        for key, waiting in list(self._waiting.items()):
            left = [one for one in waiting if one != process]
            if len(left) < len(waiting):
                self._leave_waiting(key, left)
            if left and key not in self._owners and self._early is None:
                self._abandoned[key] = None

    def _leave_waiting(self, key: bytes, left: list[str]) -> None:
        if left:
            self._waiting[key] = left
            return
        del self._waiting[key]
        self._abandoned.pop(key, None)
        if (owner := self._owners.get(key)) is not None:
            self._awaited[owner] -= 1

    def news(self, process: str) -> tuple[tuple[bytes, Any], ...]:
        """The keys that a process waits for and that have answers now, each with the place."""
        return tuple(self._to_tell.pop(process, ()))

    def take_over(self, process: str, may_ask: Callable[[], bool]) -> tuple[bytes, ...]:
        """Keys that a process waits for and asks itself now, since no other does.

        :param may_ask: whether it may, where rows of lost processes will claim their keys anew; they may ask
            something else then.
        """
        taken = [key for key in self._abandoned if process in self._waiting[key]]
        if taken and not may_ask():
            taken = []
        for key in taken:
            self._own(process, key)
        return (*self._given.pop(process, ()), *taken)

    def is_awaited(self, process: str) -> bool:
        """Whether others wait for what a process asks."""
        return self._awaited[process] > 0
