# SPDX-License-Identifier: Apache-2.0
"""Asks some rows in all steps of a job, on the way that they take in a replica, and writes no part."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from airflow_provider_raybatch.contract.preview import MOST_OF_STEP, RowAnswer
from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.parts.part import Part, outputs_of
from airflow_provider_raybatch.job.preview.picked import Picked
from airflow_provider_raybatch.job.preview.row_answer import decoded, row_answer, shown_messages
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.replica.process_parts import PartWriter, WrittenPart
from airflow_provider_raybatch.job.replica.row_asker import Read, RowAsker
from airflow_provider_raybatch.job.replica.step_work import steps_of
from airflow_provider_raybatch.job.row import Request, Response, RowFailure
from airflow_provider_raybatch.job.steps.columns import reader_of
from airflow_provider_raybatch.job.work import Job

_MOST_MESSAGES = 16
_Shown = tuple[int, RowAnswer]
"""An answer, and the number of its step."""


class PreviewedSteps:
    """What the steps of a job answer, and what they ask next."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self._shown: list[_Shown] = []
        self._writers = [_ShownAnswers(step, engine, self._shown) for step in job.steps]
        works = zip(steps_of(job, engine, ""), self._writers, strict=True)
        self._asker = RowAsker(job, [replace(work, writer=writer) for work, writer in works])

    def begin(self, read: Sequence[Read]) -> list[Row]:
        """The rows that are asked first."""
        return self._asked(self._asker.prepare([ordinal for _, _, ordinal in read], read, {}, None))

    def requests(self, rows: Sequence[Row]) -> list[Request]:
        """What the engine is asked for rows."""
        return self._asker.requests(rows)

    def next(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that later steps ask.

        :param rows: that have been asked; each `result` is what the engine gave, or why it gave nothing.
        """
        self._asker.decode(rows)
        return self._asked(self._asker.write(rows, {}).next)

    def answers(self) -> list[RowAnswer]:
        """All of them, by rows, and of a row by steps."""
        return [one for _, one in sorted(self._shown, key=lambda shown: (shown[1].ordinal, shown[0]))]

    def _asked(self, rows: Sequence[Row]) -> list[Row]:
        """Those that the engine is asked for."""
        found = []
        for row in rows:
            request = row.prepared.request
            if row.result is None and isinstance(request, Request):
                found.append(row)
            elif isinstance(request, RowFailure) and row.result is None:
                # Rows that can't be rendered are not among them: an image has failed, or an earlier answer.
                self._writers[row.step].show(row, request, request)
        return found


_NO_PART = Part("", 0, 0, 0, 0, 0)


class _ShownAnswers(PartWriter):
    """Keeps the answers of a step for people, and no part."""

    def __init__(self, step: Job, engine: Engine, shown: list[_Shown]) -> None:
        super().__init__(step, engine, "")
        self._shown = shown

    def decode(self, rows: Sequence[Row]) -> None:
        """See :class:`PartWriter`."""
        task = self._job.task
        for row, made in zip(rows, decoded(self._engine, [row.result for row in rows]), strict=True):
            request = row.prepared.request
            checked = made
            if isinstance(made, Response) and isinstance(request, Request):
                checked = task.check(made, request.sampling)
            row.result = checked
            self.show(row, made, checked)

    def show(self, row: Row, made: Response | RowFailure, checked: Response | RowFailure) -> None:
        """Keep what became of a row.

        :param made: as it came, and `checked` what a job would make of it.
        """
        answer = row_answer(self._job.task, row.position, made, checked, self._names[row.step])
        request = row.prepared.request
        if row.step and isinstance(request, Request):
            messages = shown_messages(request, MOST_OF_STEP, _MOST_MESSAGES)
            answer = answer.model_copy(update={"messages": messages})
        self._shown.append((row.step, answer))

    def write(self, rows: Sequence[Row]) -> list[WrittenPart]:
        """No part."""
        outputs = outputs_of(self._job.task, [row.result for row in rows])
        return [WrittenPart(_NO_PART, rows, outputs)] if rows else []


def read_rows(job: Job, picked: Picked, ordinals: Collection[int]) -> list[Read]:
    """The rows of some ordinals, with what all steps need; others may not see the files of this node.

    :param picked: chunks and positions that have them.
    """
    reader = reader_of(job, whole=False)
    found: list[Read] = []
    for chunk, positions in picked:
        at = [position for position in positions if chunk.ordinal + position in ordinals]
        rows = reader.rows(chunk, reader.content(chunk), at)
        found += [(rows, place, chunk.ordinal + position) for place, position in enumerate(at)]
    return found
