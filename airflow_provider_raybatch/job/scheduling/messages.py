# SPDX-License-Identifier: Apache-2.0
"""What a replica reports to the queue, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, no_rows

SILENT = 30.0
"""Seconds without a report after which a process is lost; they report every second."""


class StaleReplicaError(Exception):
    """The queue counts the calling replica as lost and has given its rows to others, so it must end."""


@dataclass(frozen=True)
class Begun:
    """What a process had begun when it ended.

    :param in_engine: rows in its engine.
    :param in_preparation: rows that it read, rendered or tokenised.
    """

    in_engine: Ordinals
    in_preparation: Ordinals = field(default_factory=no_rows)


MOST_WAITING = 16
"""How many times its slots: rows that wait for others' answers, with which a replica still asks for more."""


@dataclass(frozen=True)
class PullRequest:
    """What a replica reports when it asks for rows.

    :param answered: rows that its engine has answered since it joined, or that failed before the engine.
    :param work: output tokens since it joined, best with those of unanswered rows. Another unit will do if
        all replicas use it.
    :param finished: rows that are written since it last asked.
    :param at_once: rows that it lets into its engine, or that are there; by default as many as it has slots.
    :param waiting: rows that wait for the answer of another row, and so need nothing of its engine.
    :param proves: whether its engine may have answered some of `finished`; other rows' answers don't tell.
    """

    answered: int = 0
    work: float = 0.0
    finished: Ordinals = field(default_factory=no_rows)
    at_once: int | None = None
    waiting: int = 0
    proves: bool = True


@dataclass(frozen=True)
class Assignment:
    """What a replica gets. The queue decides; the coordinator adds what follows `is_finished`.

    :param rows: in the order in which they are to begin.
    :param borrow: pieces that it takes from Ray's object store, or from storage if that fails. It reads the
        others from storage, and keeps them until they are named in `release`.
    :param put: pieces that it puts into the object store when it has read them: others get rows of them.
    :param isolated: whether `rows` must run without other rows in the engine, since one of them may kill it.
    :param failed: rows that have killed an engine, to be written as failed.
    :param release: pieces without rows that are left to give out.
    :param give_back: how many of the rows that it has not begun it must give back.
    :param flush: whether it gets more rows only after it has written all that it has.
    :param ask_below: it asks again when it holds fewer unanswered rows, and with each flush.
    :param has_share: whether it has its share of all rows that are left.
    :param is_finished: whether every row of the input is written.
    :param chunks: the chunks or buckets in which its rows lie, by number of their piece.
    :param repetitions: by row, how many rows before it ask the same sampled request.
    :param leaves: whether the replica is no longer needed, since no rows are left for it.
    :param answers: parts of earlier steps that lost replicas have left, each with the number of its step;
        those that this one does not know of yet.
    :param shared: keys that it waits for and that have answers now, each with the part that has it.
    :param taken_over: keys that it waits for and asks itself now.
    :param is_awaited: whether other replicas wait for what it asks.
    """

    rows: Ordinals = field(default_factory=no_rows)
    borrow: Set[int] = frozenset()
    put: Set[int] = frozenset()
    isolated: bool = False
    failed: Ordinals = field(default_factory=no_rows)
    release: tuple[int, ...] = ()
    give_back: int = 0
    flush: bool = False
    ask_below: int = 0
    has_share: bool = False
    is_finished: bool = False
    chunks: Mapping[int, Any] = field(default_factory=dict)
    repetitions: Mapping[int, int] = field(default_factory=dict)
    leaves: bool = False
    answers: tuple[tuple[int, Any], ...] = ()
    shared: tuple[tuple[bytes, Any], ...] = ()
    taken_over: tuple[bytes, ...] = ()
    is_awaited: bool = False
