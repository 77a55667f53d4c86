# SPDX-License-Identifier: Apache-2.0
"""Pairs of answers, judged in both orders, because judges have a position bias."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.rows import require
from airflow_provider_raybatch.workflows.prompts import CHOICES, FIRST, SECOND, TIE
from airflow_provider_raybatch.workflows.statistics import Interval, mcnemar, proportion_interval

PAIR_COLUMNS = ("pair", "order", "question", "first", "second")
"""Columns of :func:`both_orders`; `order` is ``ab`` or ``ba``."""


def both_orders(
    candidate: Iterable[pa.RecordBatch],
    baseline: Iterable[pa.RecordBatch],
    key: str,
    question: str = "question",
    response: str = "response",
) -> Iterator[pa.RecordBatch]:
    """Two rows for each question that both answered: the candidate first (``ab``), then second (``ba``).

    Holds the baseline's answers in memory and streams the candidate's.

    :param key: column that names the question; unique in each of the two datasets.
    :returns: batches with :data:`PAIR_COLUMNS`, all of them text, for a `DatasetWriter`.
    :raises UsageError: a column is missing, or the baseline has a question twice.
    """
    known, answers = _both([_texts(batch, (key, response)) for batch in baseline])
    if len(known) != (distinct := pc.count_distinct(known, mode="all").as_py()):
        raise UsageError(
            f"key: {key!r} names {count_of(len(known), 'row')} of the baseline, and has "
            f"{count_of(distinct, 'value')}; name a column that is unique."
        )
    for batch in candidate:
        keys, asked, ours = _texts(batch, (key, question, response))
        at = pc.index_in(keys, value_set=known)
        keys, asked, ours = (values.filter(pc.is_valid(at)) for values in (keys, asked, ours))
        theirs = answers.take(at.drop_null()).cast(pa.string())
        for order, first, second in (("ab", ours, theirs), ("ba", theirs, ours)):
            columns = [keys, pa.repeat(pa.scalar(order), len(keys)), asked, first, second]
            yield pa.RecordBatch.from_arrays(columns, names=list(PAIR_COLUMNS))


@dataclass(frozen=True)
class PairwiseResult:
    """The result of judging pairs.

    An answer wins a pair if the judge chooses it in both orders. If the orders disagree, the position
    decided, so the pair counts as a tie.

    :param wins: pairs that the candidate won; with `losses` and `ties` all pairs that were judged in both
        orders.
    :param disagreements: ties in which the two orders disagree.
    :param incomplete: pairs for which one order is missing or has no choice; not counted.
    :param agreement: share of pairs whose orders agree.
    :param win_rate: of the candidate, among the pairs that are not ties; ``None`` if all are ties.
    :param p_value: of an exact two-sided sign test against an even win rate.
    :param chose_first: share of the first position among the choices of A or B; 0.5 without position bias.
    :param bias_p_value: of a two-sided test against no position bias, among the pairs whose orders chose the
        same position.
    """

    wins: int
    losses: int
    ties: int
    disagreements: int
    incomplete: int
    agreement: Interval
    win_rate: Interval | None
    p_value: float
    chose_first: float
    bias_p_value: float


def settle(batches: Iterable[pa.RecordBatch], response: str = "response") -> PairwiseResult:
    """Pair the judgements of both orders.

    :param batches: of the judge's dataset, with `pair`, `order` and the choice.
    :param response: column of the choice, as plain text or as a JSON string.
    :raises UsageError: a column is missing, or no pair was judged in both orders.
    """
    seen: dict[str, dict[str, str]] = {}
    for batch in batches:
        columns = (column.to_pylist() for column in _texts(batch, ("pair", "order", response)))
        for pair, order, said in zip(*columns, strict=True):
            choices = seen.setdefault(pair, {})
            if (choice := _choice(said)) is not None:
                choices[order] = choice
    complete = [one for one in seen.values() if {"ab", "ba"} <= set(one)]
    if not complete:
        raise UsageError(
            f"judgements: none of the {len(seen):,} pairs has a choice in both orders; look at the judge's "
            f"responses in the column {response!r}."
        )
    return _result([(one["ab"], one["ba"]) for one in complete], len(seen) - len(complete))


def _result(pairs: list[tuple[str, str]], incomplete: int) -> PairwiseResult:
    # In the order "ba" the candidate is second.
    flipped = {FIRST: SECOND, SECOND: FIRST, TIE: TIE}
    agreed = [ab for ab, ba in pairs if ab == flipped[ba]]
    wins, losses = agreed.count(FIRST), agreed.count(SECOND)
    choices = [one for pair in pairs for one in pair if one != TIE]
    always = [ab for ab, ba in pairs if ab == ba and ab != TIE]
    return PairwiseResult(
        wins=wins,
        losses=losses,
        ties=len(pairs) - wins - losses,
        disagreements=len(pairs) - len(agreed),
        incomplete=incomplete,
        agreement=proportion_interval(len(agreed), len(pairs)),
        win_rate=proportion_interval(wins, wins + losses) if wins + losses else None,
        p_value=mcnemar(wins, losses),
        chose_first=choices.count(FIRST) / len(choices) if choices else 0.5,
        bias_p_value=mcnemar(always.count(FIRST), always.count(SECOND)),
    )


def _choice(text: str | None) -> str | None:
    said = (text or "").strip()
    if said.startswith('"'):
        try:
            said = str(json.loads(said))
        except ValueError:
            return None
    return next((one for one in CHOICES if said.lower() == one.lower()), None)


def _texts(batch: pa.RecordBatch, columns: tuple[str, ...]) -> list[pa.Array]:
    for name in columns:
        require(batch.schema.names, [name], "columns")
    return [batch.column(name).cast(pa.string()) for name in columns]


def _both(batches: list[list[pa.Array]]) -> tuple[pa.Array, pa.Array]:
    empty = pa.array([], pa.string())
    keys, answers = zip([empty, empty], *batches, strict=True)
    # All answers together may exceed the 2 GiB limit of a `string` array.
    return pa.concat_arrays(keys), pa.concat_arrays([one.cast(pa.large_string()) for one in answers])
