# SPDX-License-Identifier: Apache-2.0
"""Which rows are read. Pure: the same seed picks the same rows."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence

from airflow_provider_raybatch.job.input.survey import Chunk

ROWS_PER_RUN = 128
MOST_COUNTED = 50_000
"""Rows whose tokens are counted unless all are asked for: some ten seconds."""

Picked = list[tuple[Chunk, Sequence[int]]]
"""Chunks, with positions in each."""


def shares(picked: Picked, most: int, fewest_rows: int) -> list[Picked]:
    """At most `most` neighbouring shares of about equal size, of `fewest_rows` rows at least."""
    rows = sum(len(positions) for _, positions in picked)
    size = math.ceil(rows / max(1, min(most, rows // fewest_rows)))
    found, room = list[Picked](), 0
    for one in picked:
        if room <= 0:
            found.append([])
            room = size
        found[-1].append(one)
        room -= len(one[1])
    return found or [picked]


def picked_rows(chunks: Sequence[Chunk], rows: int, wanted: int, seed: int | None) -> Picked:
    """The first `wanted` of `rows` rows, or a random sample of them, in the order of the input."""
    wanted = min(wanted, rows)
    ordinals = range(wanted) if seed is None else sorted(random.Random(seed).sample(range(rows), wanted))
    starts = [chunk.ordinal for chunk in chunks]
    found: dict[int, list[int]] = {}
    for ordinal in ordinals:
        place = bisect_right(starts, ordinal) - 1
        found.setdefault(place, []).append(ordinal - starts[place])
    return [(chunks[place], positions) for place, positions in found.items()]


def picked_runs(chunks: Sequence[Chunk], most: int | None, seed: int) -> Picked:
    """All chunks, or random ones with about `most` rows in all: neighbours are read together."""
    chosen = list(chunks)
    if most is not None and sum(chunk.rows for chunk in chunks) > most:
        chosen, rows = [], 0
        for chunk in random.Random(seed).sample(list(chunks), len(chunks)):
            chosen.append(chunk)
            rows += chunk.rows
            if rows >= most:
                break
        chosen.sort(key=lambda chunk: chunk.ordinal)
    return [(chunk, range(chunk.rows)) for chunk in chosen]
