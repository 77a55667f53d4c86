# SPDX-License-Identifier: Apache-2.0
"""Some rows as a job would ask them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.preview import (
    Answered,
    Preview,
    PreviewRequest,
    PreviewRow,
)
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import clean, cut_to
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.parts.ledger import Ledger
from airflow_provider_raybatch.job.preflight.check import Facts
from airflow_provider_raybatch.job.preflight.checked_job import StepLedgers
from airflow_provider_raybatch.job.preflight.input_check import SampledRows
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preview import tokens
from airflow_provider_raybatch.job.preview.asker import read_rows
from airflow_provider_raybatch.job.preview.counters import PromptLength
from airflow_provider_raybatch.job.preview.inspection import (
    Refusals,
    Uncounted,
    asked,
    sized,
    store_of,
    unfinished,
    would_run,
)
from airflow_provider_raybatch.job.preview.row_answer import shown_messages
from airflow_provider_raybatch.job.preview.tokens import ROWS_PER_RUN, Counted, Question, picked_rows
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow
from airflow_provider_raybatch.job.replica.row_asker import Read
from airflow_provider_raybatch.job.request import keys
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses
from airflow_provider_raybatch.job.reuse.reuse import caches_of
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.work import Job


@dataclass(frozen=True)
class PreviewedRows:
    """The rows of a preview.

    :param rows: as they are shown.
    :param counted: the same as they are asked.
    :param read: the rows that may be asked, as they were read.
    :param fits: whether the cluster holds the job, now or later.
    """

    rows: list[PreviewRow] = field(default_factory=list)
    counted: Counted = field(default_factory=Counted)
    read: Sequence[Read] = ()
    fits: bool = True

    def sound(self, most: int) -> list[PreviewRow]:
        """Those of the first `most` rows that don't fail before the engine."""
        return [row for row in self.rows[:most] if row.failure is None]


def preview(facts: Facts, wanted: PreviewRequest, refusals: Refusals) -> PreviewedRows:
    """The rows, and what the cluster says.

    :param facts: by :func:`~airflow_provider_raybatch.job.preview.inspection.inspect`.
    """
    rows, counted, read = list[PreviewRow](), Counted(), list[Read]()
    source, job, spec = facts.get(Source), facts.get(Job), facts[BatchInferenceSpec]
    if source is not None and facts.get(SampledRows) is not None:
        picked = picked_rows(source.chunks(ROWS_PER_RUN), source.rows, wanted.rows, wanted.seed)
        refusals.begin("rendering the rows, and looking for their answers")
        question = Question(asked(facts), picked, counts=facts.get(Uncounted) is None, keeps=True)
        with refusals.caught():
            counted = tokens.ask(question)
            counted.note_images(refusals)
        if counted.problem and facts.get(ModelCheck) is not None:  # else the check of the model says why
            refusals.refuse(counted.problem)
        rows = _shown(facts, counted, is_first=wanted.seed is None, refusals=refusals)
        if wanted.ask and spec.engine != "ray_data_llm" and job is not None and would_run(facts):
            # A row that the first step skips may be asked by a later one.
            sound = PreviewedRows(rows).sound(wanted.ask)
            may_ask = {row.ordinal for row in sound if job.before or not row.is_skipped}
            with refusals.caught():
                read = read_rows(job, picked, may_ask)
    before = len(refusals.sentences)
    with refusals.caught():
        sized(facts, unfinished(facts), refusals)
    return PreviewedRows(rows, counted, read, fits=len(refusals.sentences) == before)


def end_of_preview(facts: Facts, made: PreviewedRows, refusals: Refusals) -> Preview:
    """What a preview says after its rows."""
    source = facts.get(Source)
    return Preview(
        rows=None if source is None else source.rows,
        refusals=tuple(refusals.sentences),
        notices=tuple(refusals.notices),
        rows_shown=len(made.rows),
    )


def _shown(facts: Facts, counted: Counted, is_first: bool, refusals: Refusals) -> list[PreviewRow]:
    job, ledgers = facts.get(Job), facts.get(StepLedgers)
    own = {} if job is None else _keys(job.questions[0].keyer, counted, is_first)
    known: dict[int, Answered] = {}
    if job is not None and ledgers is not None:
        with refusals.caught():
            known = answered(job.questions[0], ledgers.first, store_of(facts), own, refusals.emit)
    first: dict[bytes, int] = {}
    shares = facts[BatchInferenceSpec].deduplicate
    rows = []
    for place, (ordinal, row) in enumerate(zip(counted.ordinals, counted.prepared, strict=True)):
        length = counted.lengths[place] if counted.lengths else PromptLength()
        key = own.get(ordinal)
        same = None if key is None or not shares else first.setdefault(key, ordinal)
        rows.append(_row(ordinal, row, length, key, known.get(ordinal), None if same == ordinal else same))
    for ordinal, row in counted.skipped.items():
        rows.append(PreviewRow(ordinal=ordinal, row_id=_shown_id(row), is_skipped=True))
    return sorted(rows, key=lambda row: row.ordinal)


def _keys(keyer: Keyer, counted: Counted, is_first: bool) -> dict[int, bytes]:
    """Request keys by ordinal. Repeated sampled requests are numbered where all rows before are known."""
    places = [place for place, row in enumerate(counted.prepared) if row.key is not None]
    made = [key for place in places if (key := counted.prepared[place].key) is not None]
    if is_first and made:
        requests = [counted.prepared[place].request for place in places]
        sampled = [isinstance(one, Request) and not keyer.is_greedy(one) for one in requests]
        numbers = keys.repetitions(keys.as_array(made), np.array(sampled, np.bool_))
        made = [keys.nth(key, int(number)) for key, number in zip(made, numbers, strict=True)]
    return {counted.ordinals[place]: key for place, key in zip(places, made, strict=True)}


def _row(
    ordinal: int,
    row: PreparedRow,
    length: PromptLength,
    key: bytes | None,
    known: Answered | None,
    same_as: int | None,
) -> PreviewRow:
    failure = length.failure or (row.request if isinstance(row.request, RowFailure) else None)
    request = row.request if isinstance(row.request, Request) else None
    return PreviewRow(
        ordinal=ordinal,
        row_id=_shown_id(row),
        messages=() if request is None else shown_messages(request),
        sampling=_sampling(request),
        tokens=length.whole if length.whole >= 0 else None,
        cut_tokens=length.cut,
        key=None if key is None else key.hex(),
        answered=known,
        same_as=same_as,
        failure=None if failure is None else f"{failure.step}: {failure.reason}",
    )


def _shown_id(row: PreparedRow) -> str | None:
    return None if row.row_id is None else cut_to(clean(row.row_id), 200)


def _sampling(request: Request | None) -> str:
    if request is None or not request.sampling:
        return ""
    return cut_to(clean(json.dumps(dict(request.sampling), ensure_ascii=False, default=str)), 1_000)


def answered(
    job: Job,
    earlier: Ledger,
    store: StoredResponses | None,
    rows: Mapping[int, bytes],
    emit: Callable[[Notice], None],
) -> dict[int, Answered]:
    """Where the rows have an answer, in the order in which a job searches; without those that have none.

    :param earlier: of the same input and requests.
    :param rows: request keys by ordinal.
    """
    found: dict[int, Answered] = {ordinal: "earlier job" for ordinal in rows if earlier.good[ordinal]}
    for origin, source in caches_of(job, earlier.files, store, 1, emit):  # all keys in one range
        if left := {ordinal: key for ordinal, key in rows.items() if ordinal not in found}:
            wanted = np.unique(keys.as_array(list(left.values())))
            # Of NumPy's bytes, zeros at the end are not shown.
            hits = {wanted[place : place + 1].tobytes() for place in source.lookup(wanted).places.tolist()}
            what: Answered = "response store" if origin == "stored" else "earlier input"
            found.update({ordinal: what for ordinal, key in left.items() if key in hits})
    return found
