# SPDX-License-Identifier: Apache-2.0
"""Some rows as a job would ask them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_provider_raybatch.contract.preview import (
    Answered,
    Preview,
    PreviewRequest,
    PreviewRow,
)
from airflow_provider_raybatch.contract.text import clean, cut_to
from airflow_provider_raybatch.job.parts.ledger import Ledger
from airflow_provider_raybatch.job.preview import tokens
from airflow_provider_raybatch.job.preview.inspection import Inspected, sized
from airflow_provider_raybatch.job.preview.picked import ROWS_PER_RUN, picked_rows
from airflow_provider_raybatch.job.preview.refusals import Refusals
from airflow_provider_raybatch.job.preview.row_answer import shown_messages
from airflow_provider_raybatch.job.preview.step_answers import read_rows
from airflow_provider_raybatch.job.preview.tokens import Counted, PromptLength, Question
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow
from airflow_provider_raybatch.job.replica.row_asker import Read
from airflow_provider_raybatch.job.request import keys
from airflow_provider_raybatch.job.request import keys as request_keys
from airflow_provider_raybatch.job.reuse.earlier_parts import LedgerResponses
from airflow_provider_raybatch.job.reuse.reuse import parts_of_task
from airflow_provider_raybatch.job.reuse.row_keys import Responses
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

    def requests(self, most: int) -> list[Request]:
        """What the first `most` rows ask that don't fail before the engine."""
        prepared = dict(zip(self.counted.ordinals, self.counted.prepared, strict=True))
        asked = [prepared[row.ordinal].request for row in self.sound(most) if not row.is_skipped]
        return [one for one in asked if isinstance(one, Request)]

    def sound(self, most: int) -> list[PreviewRow]:
        """Those of the first `most` rows that don't fail before the engine."""
        return [row for row in self.rows[:most] if row.failure is None]


def preview(found: Inspected, wanted: PreviewRequest, refusals: Refusals) -> PreviewedRows:
    """The rows, and what the cluster says.

    :param found: by :func:`~airflow_provider_raybatch.job.preview.inspection.inspect`.
    """
    rows, counted, read = list[PreviewRow](), Counted(), list[Read]()
    if found.source is not None and found.sampled is not None:
        chunks = found.source.chunks(ROWS_PER_RUN)
        picked = picked_rows(chunks, found.source.rows, wanted.rows, wanted.seed)
        refusals.begin("rendering the rows, and looking for their answers")
        question = Question(found.asked(), picked, counts=not found.no_tokens, keeps=True)
        with refusals.caught():
            counted = tokens.ask(question)
            counted.note_images(refusals)
        if counted.problem and found.checked is not None:  # else the check of the model says why
            refusals.refuse(counted.problem)
        rows = _shown(found, counted, is_first=wanted.seed is None, refusals=refusals)
        asks = wanted.ask and found.spec.engine != "ray_data_llm"
        if asks and found.job is not None and found.source_fits:
            # A row that the first step skips may be asked by a later one.
            sound = PreviewedRows(rows).sound(wanted.ask)
            may_ask = {row.ordinal for row in sound if found.spec.steps or not row.is_skipped}
            with refusals.caught():
                read = read_rows(found.job, picked, may_ask)
    return PreviewedRows(rows, counted, read, refusals.passes(sized, found, found.unfinished, refusals))


def end_of_preview(found: Inspected, made: PreviewedRows, refusals: Refusals) -> Preview:
    """What a preview says after its rows."""
    return Preview(
        rows=None if found.source is None else found.source.rows,
        refusals=tuple(refusals.sentences),
        notices=tuple(refusals.notices),
        rows_shown=len(made.rows),
    )


def _shown(found: Inspected, counted: Counted, is_first: bool, refusals: Refusals) -> list[PreviewRow]:
    own = _keys(found, counted, is_first) if found.job is not None else {}
    known: dict[int, Answered] = {}
    if found.job is not None and found.earlier is not None:
        with refusals.caught():
            known = answered(found.asked(), found.earlier, found.store, own)
    first: dict[bytes, int] = {}
    shares = found.spec.deduplicate
    rows = []
    for place, (ordinal, row) in enumerate(zip(counted.ordinals, counted.prepared, strict=True)):
        length = counted.lengths[place] if counted.lengths else PromptLength()
        key = own.get(ordinal)
        same = None if key is None or not shares else first.setdefault(key, ordinal)
        rows.append(_row(ordinal, row, length, key, known.get(ordinal), None if same == ordinal else same))
    for ordinal, row in counted.skipped.items():
        rows.append(PreviewRow(ordinal=ordinal, row_id=_shown_id(row), is_skipped=True))
    return sorted(rows, key=lambda row: row.ordinal)


def _keys(found: Inspected, counted: Counted, is_first: bool) -> dict[int, bytes]:
    """Request keys by ordinal. Repeated sampled requests are numbered where all rows before are known."""
    if found.job is None:
        return {}
    keyer = found.asked().keyer
    places = [place for place, row in enumerate(counted.prepared) if row.key is not None]
    made = [key for place in places if (key := counted.prepared[place].key) is not None]
    if is_first and made:
        asked = [counted.prepared[place].request for place in places]
        sampled = [isinstance(one, Request) and not keyer.is_greedy(one) for one in asked]
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
    return None if row.row_id is None else cut_to(200, clean(row.row_id))


def _sampling(request: Request | None) -> str:
    if request is None or not request.sampling:
        return ""
    return cut_to(1_000, clean(json.dumps(dict(request.sampling), ensure_ascii=False, default=str)))


def answered(
    job: Job, earlier: Ledger, store: Responses | None, rows: Mapping[int, bytes]
) -> dict[int, Answered]:
    """Where the rows have an answer, in the order in which a job searches; without those that have none.

    :param earlier: of the same input and requests.
    :param rows: request keys by ordinal.
    """
    found: dict[int, Answered] = {ordinal: "earlier job" for ordinal in rows if earlier.good[ordinal]}
    own = f"{job.run_folder}/"
    elsewhere = [part for part in parts_of_task(job) if not part.path.startswith(own)]
    if elsewhere:
        carried = LedgerResponses(job.folder, elsewhere, damaged=lambda path: None)
        _add(found, rows, carried, "earlier input")
    if store is not None:
        _add(found, rows, store, "response store")
    return found


def _add(found: dict[int, Answered], rows: Mapping[int, bytes], source: Responses, what: Answered) -> None:
    left = {ordinal: key for ordinal, key in rows.items() if ordinal not in found}
    if not left:
        return
    keys = np.unique(request_keys.as_array(list(left.values())))
    # Of NumPy's bytes, zeros at the end are not shown.
    hits = {keys[place : place + 1].tobytes() for place in source.lookup(keys).places.tolist()}
    found.update({ordinal: what for ordinal, key in left.items() if key in hits})
