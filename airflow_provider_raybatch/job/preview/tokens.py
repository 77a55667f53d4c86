# SPDX-License-Identifier: Apache-2.0
"""Renders rows and counts their tokens as a replica would, in a task beside the model.

The same seed picks the same rows.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.media.allowed import image_access
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.preflight.engine_check import beside_the_model
from airflow_provider_raybatch.job.preview.counters import EchoCounter, PromptLength, VllmCounter
from airflow_provider_raybatch.job.preview.inspection import Refusals
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow, RequestBuilder, read_columns
from airflow_provider_raybatch.job.row import NOT_ASKED, Request
from airflow_provider_raybatch.job.run.cpu_tasks import on_this_node, users_code
from airflow_provider_raybatch.job.work import Job

ROWS_PER_RUN = 128
MOST_COUNTED = 50_000
"""Rows whose tokens are counted unless all are asked for: some ten seconds."""
_MOST_TASKS = 64
_IMAGES = {
    "processor": "the model's processor counted the tokens of the images of {}",
    "mean": "those of {} more count with the mean of these",
    "none": "the tokens of the images of {} are not counted",
    "one": "each counts as one token, as the echo engine has it",
}

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


@dataclass(frozen=True)
class Question:
    """Which rows are to be rendered, and counted if `counts`. Picklable.

    :param keeps: whether the rows themselves are wanted, and not only their lengths.
    """

    job: Job
    picked: Picked
    counts: bool = True
    keeps: bool = False


@dataclass(frozen=True)
class Counted:
    """The answer.

    :param ordinals: of the rows.
    :param skipped: rows that `on_blank`, or the first of several steps, leaves out; only the others are
        counted.
    :param prepared: the rows, if they are wanted.
    :param lengths: of each row; none if nothing was counted.
    :param problem: why not.
    """

    ordinals: list[int] = field(default_factory=list)
    skipped: dict[int, PreparedRow] = field(default_factory=dict)
    prepared: list[PreparedRow] = field(default_factory=list)
    lengths: list[PromptLength] = field(default_factory=list)
    context: int = 0
    problem: str = ""

    def note_images(self, refusals: Refusals) -> None:
        """Note how images were counted, if rows have any."""
        counted_by = [one.images for one in self.lengths]
        told = [text.format(count_of(counted_by.count(how), "row")) for how, text in _IMAGES.items()
                if how in counted_by]  # fmt: skip
        if told:
            refusals.note(f"images: {'; '.join(told)}")


def ask(question: Question) -> Counted:
    """Render and count in tasks: on nodes with the model, and users' code apart from this process."""
    spec = question.job.spec
    free = int(ray.available_resources().get("CPU", 1))
    pieces = shares(question.picked, min(_MOST_TASKS, max(1, free)), MOST_COUNTED)
    places = _places(spec)
    references = [
        ray.remote(counted).options(**places[number % len(places)]).remote(replace(question, picked=piece))
        for number, piece in enumerate(pieces)
    ]
    try:
        return together(ray.get(references))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RaybatchError):
            raise error.cause from None
        raise
    except ray.exceptions.WorkerCrashedError as error:
        code = users_code(prompt_function=spec.prompt_function)
        raise RaybatchError(
            f"{code or 'source'}: the process that renders the rows ended each time; let a function raise "
            "an exception instead, and see that the node has memory for the longest rows."
        ) from error


def _places(spec: BatchInferenceSpec) -> list[dict[str, Any]]:
    """Ray's options for tasks that need what the engine needs: of each node in turn that has it."""
    if spec.engine == "echo":
        return [{"num_cpus": 0, "scheduling_strategy": "SPREAD"}]
    nodes = cluster_view.gpu_nodes(spec.accelerator_type)
    return [beside_the_model(node) for node in nodes] or [on_this_node()]


def together(parts: Sequence[Counted]) -> Counted:
    """The answers of several tasks, in the order of their rows."""
    return Counted(
        ordinals=[one for part in parts for one in part.ordinals],
        skipped={ordinal: row for part in parts for ordinal, row in part.skipped.items()},
        prepared=[one for part in parts for one in part.prepared],
        lengths=[one for part in parts for one in part.lengths],
        context=max((part.context for part in parts), default=0),
        problem=next((part.problem for part in parts if part.problem), ""),
    )


def counted(question: Question) -> Counted:
    """See :func:`ask`; in this process."""
    job, problem = question.job, ""
    set_environment(job.environment)
    counter: EchoCounter | VllmCounter | None = None
    if question.counts:
        try:
            access = image_access(job.spec, job.listing, job.credentials)
            counter = EchoCounter(job.spec) if job.spec.engine == "echo" else VllmCounter(job.spec, access)
        except RaybatchError as error:
            problem = str(error)
    ordinals, skipped = list[int](), dict[int, PreparedRow]()
    prepared, lengths = list[PreparedRow](), list[PromptLength]()
    for some, rows in _rows(question, skipped):
        ordinals += some
        if question.keeps:
            prepared += rows
        if counter is not None:
            lengths += _lengths(counter, rows)
    return Counted(ordinals, skipped, prepared, lengths, 0 if counter is None else counter.context, problem)


def _rows(
    question: Question, skipped: dict[int, PreparedRow]
) -> Iterator[tuple[list[int], list[PreparedRow]]]:
    """The rows that are asked, by chunks, with their ordinals.

    :param skipped: gets the others.
    """
    job, which = question.job, question.job.spec.question
    earlier = dict.fromkeys(which.earlier_columns, "?")
    # Of conditions, those that answers do not decide.
    step = which.step.model_copy(update={"when": [one for one in which.step.when if one[0] not in earlier]})
    columns = read_columns(job.spec)
    if earlier and columns is not None:
        columns = [one for one in columns if one not in earlier]
    reader = Reader(job.listing, columns, job.credentials, whole=False, texts=job.spec.text_columns())
    builder = RequestBuilder(job.spec, job.task.renderer(), job.keyer)
    for chunk, positions in question.picked:
        rows = reader.rows(chunk, reader.content(chunk), positions).rows
        asked = {}
        for position, row in zip(positions, rows, strict=True):
            row = {**row, **earlier} if isinstance(row, dict) else row
            if isinstance(row, dict) and not step.is_asked(row):
                skipped[chunk.ordinal + position] = builder.skipped(row)
            else:
                asked[chunk.ordinal + position] = row
        made = dict(zip(asked, builder.ask(list(asked.values())), strict=True))
        skipped |= {ordinal: one for ordinal, one in made.items() if one.request is NOT_ASKED}
        made = {ordinal: one for ordinal, one in made.items() if one.request is not NOT_ASKED}
        yield list(made), list(made.values())


def _lengths(counter: EchoCounter | VllmCounter, prepared: Sequence[PreparedRow]) -> list[PromptLength]:
    requests = [row.request for row in prepared if isinstance(row.request, Request)]
    made = iter(counter.count(requests))
    return [
        next(made) if isinstance(row.request, Request) else PromptLength(failure=row.request)
        for row in prepared
    ]
