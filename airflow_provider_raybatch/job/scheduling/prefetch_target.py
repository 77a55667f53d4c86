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

_LEAD_SECONDS = 10.0
"""Rows of so many seconds wait in a replica while there is much to do; about `flush_interval`, at which it
calls anyway."""
_LEAST_SECONDS = 0.5
"""So long it may take until what it asks for can begin (the call, a read, tokenising), so rows of that time
wait in it until the end."""
WINDOW = 4.0
"""So many times its slots a replica holds while there is much to do, so that it can let the long ones among
them begin first."""
_WINDOW_BYTES = 2.0**28
"""Less, where so many bytes of input hold fewer rows."""


def share(
    slots: int, pace: float | None, part: float, soon: float, free: int, unanswered: int, row_bytes: float
) -> tuple[int, int, bool]:
    """What a replica is to hold now.

    :param slots: rows that its engine runs at once.
    :param pace: rows that it answers in a second, ``None`` before that is known.
    :param part: its part (0 to 1) of the speed of all replicas that live, or are about to.
    :param soon: the same, with those that are starting. Beyond its slots, it leaves their share to them.
    :param free: rows that no replica has.
    :param unanswered: rows that are free, or that a replica has and has not answered.
    :param row_bytes: bytes of input a row.
    :returns: how many unanswered rows, those in its engine included; how few make it ask again; and whether
        that is its share of all that are left.
    """
    wanted = slots if pace is None else pace * _LEAD_SECONDS
    least = 1.0 if pace is None else max(1.0, pace * _LEAST_SECONDS)
    lead = max(least, min(wanted, free * soon / 2))
    fair = max(1, min(slots, math.ceil(unanswered * part)), math.ceil(unanswered * soon))
    window = min(WINDOW * slots, _WINDOW_BYTES / max(1.0, row_bytes))
    most = max(slots + math.ceil(lead), int(window))
    rows = min(most, fair)
    return rows, max(0, rows - math.ceil(lead / 2)), fair <= most
