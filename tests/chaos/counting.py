# SPDX-License-Identifier: Apache-2.0
"""Counts the engines' requests by their own logs, and those that were wasted.

Each engine writes a line when it opens, when a request starts and when it ends (`request_log` of the echo
engine). Parts show which prompts are answered, and since when. All times are of one machine's clock.

- *asked*, *generated*: starts and ends in the logs of all engines of a run, also of dead ones.
- *in flight*: requests that a lost replica had started, and that no part answered at the instant of the kill
  that took the replica.
- *overdue*: requests in flight whose answer, at that instant, was older than the time that answers may wait
  (`flush_interval`) and a part takes.
- *unexplained*: further requests for a prompt after the first, without those in flight.
- *late*: requests of submissions that began when a part already answered the prompt.
- *foreign*: engines of submissions that the cluster never showed, and prompts of no row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.engine_log import Engine, engines

from .places import Part


@dataclass(frozen=True)
class Count:
    """See the module docstring."""

    asked: int = 0
    generated: int = 0
    in_flight: int = 0
    overdue: int = 0
    unexplained: int = 0
    late: int = 0
    foreign: int = 0


def generated_by_now(folder: Path) -> int:
    return sum(len(engine.generated) for engine in engines(folder))


def living(folder: Path) -> list[int]:
    """Return the process ids of the living engines in `folder`, the oldest first."""
    found: list[tuple[float, int]] = []
    for file in folder.glob("*.jsonl"):
        pid = int(file.stem.rpartition("-")[2])
        try:
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.create_time(), pid))
        except psutil.NoSuchProcess:
            continue
    return [pid for _, pid in sorted(found)]


def count(
    engines: Iterable[Engine],
    parts: Iterable[Part],
    lost: Mapping[int, float],
    submissions: Collection[tuple[str, float]],
    prompts: Collection[str],
    written_within: float,
) -> Count:
    """See the module docstring.

    :param lost: process ids of killed engines, and the time of the kill.
    :param submissions: all submissions of the run: id, and epoch seconds when the cluster got it. Ids begin
        anew with a new head.
    :param prompts: all prompts of the input.
    :param written_within: seconds within which an answer must be written.
    """
    answered: dict[str, float] = {}
    for part in parts:
        for prompt in part.prompts:
            answered[prompt] = min(part.appeared, answered.get(prompt, part.appeared))
    never = float("inf")
    asked: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    in_flight = overdue = late = generated = foreign = 0
    for engine in engines:
        generated += len(engine.generated)
        began = max(
            (at for id_, at in submissions if id_ == engine.submission and at <= engine.opened), default=None
        )
        foreign += began is None
        dies = lost.get(engine.pid, never)
        overdue += sum(
            at < dies - written_within and answered.get(prompt, never) > dies
            for prompt, at in engine.generated
            if dies < never
        )
        for prompt, _ in engine.asked:
            asked[prompt] += 1
            late += answered.get(prompt, never) < (began or 0)
            if dies < never and answered.get(prompt, never) > dies:
                in_flight += 1
            else:
                kept[prompt] += 1
    return Count(
        asked=asked.total(),
        generated=generated,
        in_flight=in_flight,
        overdue=overdue,
        unexplained=sum(times - 1 for times in kept.values() if times > 1),
        late=late,
        foreign=foreign + len({*asked} - {*prompts}),
    )
