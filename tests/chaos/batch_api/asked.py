# SPDX-License-Identifier: Apache-2.0
"""Counts what engines were asked for a batch, by their own logs.

A request is *in flight* at a kill if the kill took its engine, or the driver that the engine worked for, and
no part held its answer at that instant. Such a request may be made again. Any other prompt is asked once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tests.support.engine_log import Engine

SLACK = 5.0
"""Seconds for which an engine may go on after the kill of its driver."""


@dataclass(frozen=True)
class Loss:
    """A kill that took an engine, or its driver.

    :param at: epoch seconds right before the signal.
    """

    pid: int
    at: float


@dataclass(frozen=True)
class Asked:
    """What was asked for a batch.

    :param requests: that engines began, and `again` those beyond the first of each prompt.
    :param in_flight: requests that kills took.
    :param unexplained: requests of one prompt beyond the first, without those in flight.
    :param late: requests of submissions that began when a part held the answer.
    :param side_by_side: pairs of submissions that asked rows of the batch in turns.
    """

    requests: int = 0
    again: int = 0
    in_flight: int = 0
    unexplained: int = 0
    late: int = 0
    side_by_side: int = 0


def asked(
    engines: Iterable[Engine],
    prompts: Collection[str],
    durable: Mapping[str, float],
    losses: Iterable[Loss],
) -> Asked:
    """Count the requests of one batch.

    :param prompts: of the batch; others are another's.
    :param durable: when a part first held the answer of a prompt (epoch seconds).
    """
    taken = defaultdict(list)
    for loss in losses:
        taken[loss.pid].append(loss.at)
    never = float("inf")
    began: dict[str, float] = {}
    times: dict[str, int] = defaultdict(int)
    kept: dict[str, int] = defaultdict(int)
    spans: dict[str, tuple[float, float]] = {}
    in_flight = late = 0
    for engine in engines:
        began[engine.submission] = min(engine.opened, began.get(engine.submission, never))
    for engine in engines:
        for prompt, at in engine.asked:
            if prompt not in prompts:
                continue
            times[prompt] += 1
            first, last = spans.get(engine.submission, (at, at))
            spans[engine.submission] = min(first, at), max(last, at)
            answered = durable.get(prompt, never)
            late += answered < began[engine.submission]
            if any(at <= killed + SLACK and answered > killed for killed in taken[engine.pid]):
                in_flight += 1
            else:
                kept[prompt] += 1
    in_order = sorted(spans.values())
    return Asked(
        requests=sum(times.values()),
        again=sum(times.values()) - len(times),
        in_flight=in_flight,
        unexplained=sum(count - 1 for count in kept.values() if count > 1),
        late=late,
        side_by_side=sum(later[0] <= earlier[1] for earlier, later in pairwise(in_order)),
    )
