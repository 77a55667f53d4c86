# SPDX-License-Identifier: Apache-2.0
"""All points in a few runs, each struck at several points one after another.

That takes a fraction of the time of one run per point, and also covers pairs of kills. The number of a round
selects mode and store of each run, and the two points where processes are frozen instead; all modes and
stores come within four rounds.
"""

from __future__ import annotations

from ..plan import MODES
from .catalogue import POINTS, STORES, Aim

_PATHS = (
    # A run reaches a point of the response store once: by then it has its dataset and has succeeded.
    ("token_stored", "not_posted", "before_claim", "claimed", "part_rename", "reported", "handed_over"),
    ("posted", "last_part", "publishing", "manifest_named", "leftover", "recorded"),
    ("before_defer", "inside_defer", "before_yield", "journalled", "copied", "post_execute"),
    ("deferred", "after_yield", "resumed"),
    ("store_data", "xcom_set"),
    ("store_index", "succeeded"),
    ("store_mark",),
    ("store_merge",),
    ("store_deletion",),
)


def journeys(round_: int) -> list[Aim]:
    """Return aims that strike every point once by SIGKILL, and two by SIGSTOP.

    :param round_: any number.
    """
    frozen = []
    for where in ("task", "driver"):
        able = [point for point in POINTS.values() if point.where == where and point.freezes]
        point = able[round_ % len(able)]
        before = () if point.needs is None else (point.needs,)
        frozen.append(_aim((*before, point.name), round_ // len(able), "STOP"))
    # First the runs that wait longest for others.
    return [*frozen, *(_aim(points, round_ + number) for number, points in enumerate(_PATHS))]


def _aim(points: tuple[str, ...], number: int, signal: str = "KILL") -> Aim:
    modes = [mode for mode in MODES if all(mode in POINTS[name].modes for name in points)]
    return Aim(points, modes[number % len(modes)], STORES[number // len(MODES) % len(STORES)], signal)
