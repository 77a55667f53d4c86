# SPDX-License-Identifier: Apache-2.0
"""What a replica tells the queue, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from airflow_provider_raybatch.job.execution.pieces import Ordinals


def no_rows() -> Ordinals:
    """An empty array of rows."""
    return np.empty(0, dtype=np.int64)


class GoneError(Exception):
    """The queue has taken the replica that asks for lost: its rows belong to others now, so it must end."""


@dataclass(frozen=True)
class Report:
    """What a replica says when it asks.

    :param answered: rows that its engine has answered since it joined, or that never got there.
    :param work: output tokens since it joined, best with those of unanswered rows; any unit does that is the
        same for all replicas.
    :param finished: rows that are written since it last asked.
    :param lengths: of the rows answered since it last asked, by label: their number, and the sum of their
        tokens.
    """

    answered: int = 0
    work: float = 0.0
    finished: Ordinals = field(default_factory=no_rows)
    lengths: Mapping[int, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Grant:
    """What a replica gets. Rows that are in neither `read` nor `borrow` are in its memory already.

    :param rows: in the order in which they are to begin.
    :param read: pieces that it reads from storage and keeps until they are named in `release`.
    :param borrow: rows that come from another replica's memory, by its name; from storage should that fail.
    :param repeated: of `rows`, those that a process which is gone may have written.
    :param alone: whether `rows` must be alone in the engine, since one of them may kill it.
    :param failed: rows that have killed an engine, to be written as failed.
    :param release: pieces that no other replica will ask it for.
    :param give_back: number of rows, of those that it has not begun, that it is to give back.
    :param flush: whether it gets more only after all that it has is written.
    :param ask_below: it asks again when it holds fewer unanswered rows, and with each flush.
    """

    rows: Ordinals = field(default_factory=no_rows)
    read: tuple[int, ...] = ()
    borrow: Mapping[str, Ordinals] = field(default_factory=dict)
    repeated: Ordinals = field(default_factory=no_rows)
    alone: bool = False
    failed: Ordinals = field(default_factory=no_rows)
    release: tuple[int, ...] = ()
    give_back: int = 0
    flush: bool = False
    ask_below: int = 0
