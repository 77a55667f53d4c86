# SPDX-License-Identifier: Apache-2.0
"""From rows that were read, or answered, to what they ask next, and from answers to each step's parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.job.input.chunk_rows import ChunkRows
from airflow_provider_raybatch.job.media.allowed import ImageAccess, image_access
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.replica.process_parts import PartWriter, WrittenPart
from airflow_provider_raybatch.job.replica.request_builder import RequestBuilder
from airflow_provider_raybatch.job.replica.shared_answers import SharedAnswer, SharedAnswers, shared_outputs
from airflow_provider_raybatch.job.row import NOT_ASKED, SKIPPED, Request, Response, RowFailure, lacks_images
from airflow_provider_raybatch.job.row_order import lengths
from airflow_provider_raybatch.job.steps.known import KnownAnswers, last_keys
from airflow_provider_raybatch.job.steps.way import InChunk, Ranking, Standing, Way, renderer_of
from airflow_provider_raybatch.job.work import Job


@dataclass(frozen=True)
class StepWork:
    """One step; jobs that ask one question have one.

    :param name: of the step.
    :param sampling: what the engine does not have of this step; ``None`` where there is one.
    :param ranking: what its answers change in the columns of earlier steps.
    """

    builder: RequestBuilder
    writer: PartWriter
    name: str = ""
    sampling: Mapping[str, Any] | None = None
    ranking: Ranking | None = None

    def request(self, request: Request) -> Request:
        """A request as the engine takes it, whose own sampling is that of the whole job."""
        return request if self.sampling is None else request.of_step(self.name, self.sampling)

    def decode(self, rows: Sequence[Row]) -> None:
        """Make results of what the engine gave."""
        self.writer.decode(rows)
        if self.ranking is None:
            return
        ranked = self.ranking.by_responses(
            [(row.rows, row.place) for row in rows], [row.result for row in rows]
        )
        _move(rows, ranked)

    def rank(self, rows: Sequence[Row]) -> None:
        """Bring what earlier steps have answered into the order of answers that rows share with others."""
        if rows and self.ranking is not None:
            _move(
                rows, self.ranking.by_outputs([(row.rows, row.place) for row in rows], shared_outputs(rows))
            )


def _access(step: Job) -> ImageAccess | None:
    spec = step.spec
    may_share = bool(step.before) or spec.rows_decide or step.keyer.may_be_greedy
    if not (spec.deduplicate and spec.may_have_images and may_share):
        return None
    return image_access(step.spec, step.listing, step.credentials)


def _move(rows: Sequence[Row], ranked: Sequence[InChunk]) -> None:
    for row, (chunk, place) in zip(rows, ranked, strict=True):
        row.move(chunk, place)


def steps_of(job: Job, engine: Any, process: str) -> list[StepWork]:
    """The steps of a job, in order.

    :raises PreflightError: a user's function can't be imported.
    """
    return [
        StepWork(
            RequestBuilder(step.spec, renderer_of(step), step.keyer, _access(step)),
            PartWriter(step, engine, process),
            step.spec.step_name,
            step.spec.sampling if step.spec.step_name else None,
            Ranking(step) if step.family else None,
        )
        for step in job.questions
    ]


Read = tuple[ChunkRows, int, int]
"""A row: what was read with it, its place there, and its ordinal in the input."""
_Keys = list[tuple[Part, list[bytes]]]


@dataclass(frozen=True)
class Written:
    """What was written of rows that have an answer.

    :param parts: of rows that are complete, and `finished` these rows.
    :param answers: parts of earlier steps, each with the number of its step.
    :param next: rows that another step asks now.
    :param uncounted: how many of `finished` did not land as complete.
    :param keys: of requests that equal ones need not make, by the part with their answers.
    """

    parts: list[Part] = field(default_factory=list)
    finished: Sequence[Row] = ()
    answers: list[tuple[int, Part]] = field(default_factory=list)
    next: list[Row] = field(default_factory=list)
    uncounted: int = 0
    keys: _Keys = field(default_factory=list)


class RowAsker:
    """What a replica knows of the steps of its job.

    :ivar shares: whether rows that ask the same share an answer.
    """

    def __init__(self, job: Job, questions: Sequence[StepWork]) -> None:
        self._questions = questions
        self._last = len(questions) - 1
        self.shares = job.spec.deduplicate
        self._tasks = job.tasks
        self._way, self._known = Way(job), KnownAnswers(job)
        self.shared_answers = SharedAnswers(job)

    def learn(self, answers: Iterable[tuple[int, Part]]) -> None:
        """Replicas that were lost have left answers of earlier steps."""
        self._known.add(answers)

    def prepare(
        self,
        numbers: Sequence[int],
        read: Sequence[Read],
        repetitions: Mapping[int, int],
        killer: RowFailure | None,
    ) -> list[Row]:
        """Render rows that were read.

        :param numbers: of the rows, in the queue.
        :param repetitions: and `killer`: see :meth:`RequestBuilder.ask`.
        """
        positions = [position for _, _, position in read]
        known = self._known.of(positions)
        standing = self._way.begin([(rows, place) for rows, place, _ in read], positions, known)
        before = last_keys(known, positions)
        return self._rows(numbers, positions, standing, before, repetitions, killer)

    def requests(self, rows: Sequence[Row]) -> list[Request]:
        """What the engine is asked for rows that make a request."""
        return [self._questions[row.step].request(row.prepared.request) for row in rows]  # type: ignore[arg-type]

    def decode(self, rows: Sequence[Row]) -> None:
        """Make results of what the engine gave."""
        for step, some in self._by_step(rows):
            step.decode(some)

    def write(self, rows: Sequence[Row], followers: Mapping[Row, Sequence[Row]]) -> Written:
        """Write rows that have landed. An answer is in a part before the next step asks it.

        :param followers: rows that get the answer of one of these; they have not landed.
        """
        self._share(followers)
        late = [one for some in followers.values() for one in some]
        ended, going, further = list[Row](), list[Row](), list[Row]()
        for row in (*rows, *late):
            (ended if row.is_last or isinstance(row.result, RowFailure) else going).append(row)
        landed = set(rows)
        uncounted = sum(not row.is_last or row not in landed for row in ended)
        answers, keys = list[tuple[int, Part]](), _Keys()
        for step, some in self._by_step(going):
            number = some[0].step
            written, found = self._written(step, some)
            keys += found
            for one in written:
                answers.append((number, one.part))
                for row in self._after(number, one):
                    (ended if row.result is SKIPPED else further).append(row)
                    uncounted += row.result is SKIPPED
        written, found = self._written(self._questions[-1], ended) if ended else ([], [])
        return Written([one.part for one in written], ended, answers, further, uncounted, keys + found)

    def _share(self, followers: Mapping[Row, Sequence[Row]]) -> None:
        """Give rows the result of the row that was asked for them."""
        for leader, some in followers.items():
            result = leader.result
            if isinstance(result, Response):
                task = self._tasks[leader.step]
                result = SharedAnswer(task.outputs([result]), 0)
            elif isinstance(result, RowFailure):
                result = replace(result, input_tokens=0, output_tokens=0)  # which the leader has paid for
            for row in some:
                row.result = result

    @staticmethod
    def _written(step: StepWork, rows: Sequence[Row]) -> tuple[list[WrittenPart], _Keys]:
        """Write rows of one step. Returns also the keys of its requests, by the part with their answers."""
        asked, shared = list[Row](), list[Row]()
        for row in rows:
            (shared if isinstance(row.result, SharedAnswer) else asked).append(row)
        step.rank(shared)
        written, found = step.writer.write(asked), _Keys()
        for part, some, _ in written:
            keys = [
                row.prepared.key
                for row in some
                if row.prepared.is_shared and row.prepared.key and not lacks_images(row.result)
            ]
            if keys:
                found.append((part, keys))
        return [*written, *step.writer.write_shared(shared)], found

    def _by_step(self, rows: Sequence[Row]) -> list[tuple[StepWork, Sequence[Row]]]:
        """Rows by the step that has asked them."""
        found: dict[int, list[Row]] = {}
        for row in rows:
            found.setdefault(row.step, []).append(row)
        return [(self._questions[number], some) for number, some in sorted(found.items())]

    def _after(self, step: int, written: WrittenPart) -> list[Row]:
        """What rows ask next that a step has answered."""
        there = [(row.rows, row.place) for row in written.rows]
        standing = self._way.after(step, there, pa.chunked_array([written.outputs]))
        numbers, positions, before = [], [], []
        for row in written.rows:
            numbers.append(row.ordinal)
            positions.append(row.position)
            before.append(row.prepared.key)
        return self._rows(numbers, positions, standing, before, {}, None, have_begun=True)

    def _rows(
        self,
        numbers: Sequence[int],
        positions: Sequence[int],
        standing: Sequence[Standing],
        before: Sequence[bytes | None],
        repetitions: Mapping[int, int],
        killer: RowFailure | None,
        have_begun: bool = False,
    ) -> list[Row]:
        made: dict[int, Row] = {}
        for step in sorted({one.step for one in standing}):
            places = [place for place, one in enumerate(standing) if one.step == step]
            values = [standing[place].rows.rows[standing[place].place] for place in places]
            number = min(step, self._last)
            if step <= self._last:
                again = {at: repetitions[place] for at, place in enumerate(places) if place in repetitions}
                builder = self._questions[step].builder
                last = [before[place] for place in places]
                prepared = builder.ask(values, again if step == 0 else {}, killer, last)
            else:
                prepared = [self._questions[-1].builder.skipped(value) for value in values]
            for place, one in zip(places, prepared, strict=True):
                stands = standing[place]
                asked = step <= self._last and one.request is not NOT_ASKED
                made[place] = Row(
                    numbers[place],
                    positions[place],
                    one,
                    stands.rows,
                    stands.place,
                    result=None if asked else SKIPPED,
                    label=lengths.label(one.request) if asked else lengths.UNKNOWN,
                    step=number,
                    is_last=step >= self._last,
                    has_begun=have_begun,
                )
        return [made[place] for place in range(len(standing))]
