# SPDX-License-Identifier: Apache-2.0
"""How many rows a replica holds: what its engine runs, a lead that shrinks, and its fair share at most.

Guided self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers C-36(12), 1987) gives a
worker that asks 1/P of what is left: few calls in the beginning, small pieces at the end. Its first pieces
are so large that they may last longer than all the rest. Factoring (Hummel, Schonberg and Flynn, CACM 35(8),
1992) gives half of that, 1/(2P), and leaves the rest to even out differences; weighted factoring (Hummel,
Schmidt, Uma and Wein, SPAA 1996) splits it by the workers' speeds. Here that rule is for the lead alone: the
rows beyond those that the engine runs, which wait in the replica so that it need not ask for each row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """When and how far ahead replicas ask.

    :param lead_seconds: rows of so many seconds wait in a replica while there is much to do; about
        `flush_interval`, at which it calls anyway.
    :param window: so many times its slots a replica holds while there is much to do, so that it can let the
        long ones among them begin first.
    :param window_bytes: less, where so many bytes of input hold fewer rows.
    :param least_seconds: so long it may take until what it asks for can begin (the call, a read, tokenising),
        so rows of that time wait in it until the end.
    """

    lead_seconds: float = 10.0
    least_seconds: float = 0.5
    window: float = 4.0
    window_bytes: float = 2.0**28


@dataclass(frozen=True)
class Share:
    """What a replica is to hold.

    :param rows: unanswered rows, those in its engine included.
    :param ask_below: it asks again when it holds fewer.
    """

    rows: int
    ask_below: int


@dataclass(frozen=True)
class Left:
    """What is left to do.

    :param free: rows that no replica has.
    :param unanswered: rows that are free, or that a replica has and has not answered.
    :param row_bytes: bytes of input a row.
    """

    free: int
    unanswered: int
    row_bytes: float = 0.0


def share(rule: Rule, slots: int, pace: float | None, part: float, soon: float, left: Left) -> Share:
    """What a replica is to hold now.

    :param slots: rows that its engine runs at once.
    :param pace: rows that it answers in a second, ``None`` before that is known.
    :param part: its part (0 to 1) of the speed of all living replicas.
    :param soon: the same, with those that are starting. Beyond its slots, it leaves their share to them.
    """
    wanted = slots if pace is None else pace * rule.lead_seconds
    least = 1.0 if pace is None else max(1.0, pace * rule.least_seconds)
    lead = max(least, min(wanted, left.free * soon / 2))
    fair = max(1, min(slots, math.ceil(left.unanswered * part)), math.ceil(left.unanswered * soon))
    window = min(rule.window * slots, rule.window_bytes / max(1.0, left.row_bytes))
    rows = min(max(slots + math.ceil(lead), int(window)), fair)
    return Share(rows, max(0, rows - math.ceil(lead / 2)))
