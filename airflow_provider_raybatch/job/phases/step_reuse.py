# SPDX-License-Identifier: Apache-2.0
"""Answers of later steps that exist already: their requests are known where the answers before them are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK, Chunk, Source
from airflow_provider_raybatch.job.media.allowed import image_access
from airflow_provider_raybatch.job.media.load import versioned
from airflow_provider_raybatch.job.parts.ledger import RowMask, add_up
from airflow_provider_raybatch.job.parts.part import Origin, Part
from airflow_provider_raybatch.job.request.render import render_all
from airflow_provider_raybatch.job.reuse.cached_parts import ReadRows, matched, write_parts
from airflow_provider_raybatch.job.reuse.row_keys import (
    Asked,
    RequestKeys,
    Responses,
    keys_by,
    ranges_for,
    request_keys,
)
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.steps.columns import reader_of
from airflow_provider_raybatch.job.steps.known import KnownAnswers, last_keys
from airflow_provider_raybatch.job.steps.way import InChunk, Ranking, Standing, Way, renderer_of
from airflow_provider_raybatch.job.work import Job, ParallelMap, WorkItem, work


@dataclass(frozen=True)
class Caches:
    """Where answers may be.

    :param of_step: gives the caches of a step's job, each with where its responses come from.
    """

    of_step: Callable[[Job], Sequence[tuple[Origin, Responses]]]
    parallel_map: ParallelMap[RequestKeys]
    emit: Callable[[Notice], None]


def reuse_steps(
    job: Job, source: Source, resolved: RowMask, answers: list[list[Part]], caches: Caches
) -> None:
    """Write the answers of later steps that exist, as parts of this submission.

    :param resolved: rows that are complete.
    :param answers: of each step, its parts; those that are written are added.
    """
    for number, step in enumerate(job.questions[1:], 1):
        known = replace(step, answers=tuple(tuple(some) for some in answers[:number]))
        has_answer = add_up(step.folder, answers[number], source.rows).good
        answers[number] += _reuse(known, source, resolved | has_answer, caches)


def _reuse(step: Job, source: Source, resolved: RowMask, caches: Caches) -> list[Part]:
    """The answers of one step.

    :param resolved: rows that are complete, or have an answer of this step.
    """
    found = caches.of_step(step)
    first = step.first.spec
    open_rows = ~resolved
    may_begin_later = step.spec.on_blank == "null" or first.condition_columns
    if not may_begin_later:
        has_answer = np.zeros_like(resolved)
        for parts in step.answers:
            has_answer |= add_up(step.folder, parts, source.rows).good
        open_rows &= has_answer
    if not found or not open_rows.any():
        return []
    items = work(source, ROWS_PER_CHUNK, ~open_rows)
    written: list[Part] = []
    chunks = source.chunks(ROWS_PER_CHUNK)
    for some in request_keys(step, items, ranges_for(source.rows), caches.parallel_map, keys_of_step):
        left = some
        for origin, responses in found:
            cached = matched(left.ordinals, left.keys, responses)
            if not len(cached):
                continue
            own, gone = write_parts(step, chunks, cached, responses, origin, read=_rows_of(step))
            written += own
            done = np.setdiff1d(cached.ordinals, gone.ordinals)
            left = left.where(np.flatnonzero(~np.isin(left.ordinals, done)))
    if rows := sum(part.rows for part in written):
        caches.emit(
            Notice(
                message=f"step {step.spec.step_name!r}: {count_of(rows, 'answer')} found, and not asked for"
            )
        )
    return written


def keys_of_step(items: Sequence[WorkItem], step: Job) -> RequestKeys:
    """The keys of the rows of `items` that this step asks next."""
    reader = reader_of(step, whole=False, earlier_images=False)
    render, standing = renderer_of(step), _standing(step)
    access = image_access(step.spec, step.listing, step.credentials)

    def asked() -> Iterator[Asked]:
        for item in items:
            positions = item.positions
            rows = reader.rows(item.chunk, reader.content(item.chunk), positions)
            at = [item.chunk.ordinal + position for position in positions]
            stand, before = standing([(rows, place) for place in range(len(positions))], at)
            own = [
                (ordinal, one, last)
                for ordinal, one, last in zip(at, stand, before, strict=True)
                if one.step == len(step.before)
            ]
            requests = versioned(render_all(render, [one.rows.rows[one.place] for _, one, _ in own]), access)
            for (ordinal, _, last), request in zip(own, requests, strict=True):
                if isinstance(request, Request):
                    yield ordinal, request, last

    return keys_by(step.keyer, asked())


def _standing(
    step: Job,
) -> Callable[[Sequence[InChunk], Sequence[int]], tuple[list[Standing], list[bytes | None]]]:
    """Where rows stand, and the key of the last request of each."""
    way, answers = Way(step), KnownAnswers(step)

    def of(rows: Sequence[InChunk], ordinals: Sequence[int]) -> tuple[list[Standing], list[bytes | None]]:
        known = answers.of(ordinals)
        return way.begin(rows, ordinals, known), last_keys(known, ordinals)

    return of


def _rows_of(step: Job) -> ReadRows:
    """Rows with the columns of the steps before, as the answers rank them."""
    reader, standing, ranking = reader_of(step), _standing(step), Ranking(step)

    def read(chunk: Chunk, positions: npt.NDArray[np.int64], outputs: pa.StructArray) -> Sequence[InChunk]:
        rows = reader.rows(chunk, reader.content(chunk), positions.tolist())
        at = (positions + chunk.ordinal).tolist()
        stand, _ = standing([(rows, place) for place in range(len(at))], at)
        return ranking.by_outputs([(one.rows, one.place) for one in stand], outputs)

    return read
