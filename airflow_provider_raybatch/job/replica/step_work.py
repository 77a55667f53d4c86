# SPDX-License-Identifier: Apache-2.0
"""What a replica does for one step of a job: its requests, and its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.job.media.allowed import ImageAccess, image_access
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.replica.process_parts import PartWriter
from airflow_provider_raybatch.job.replica.request_builder import RequestBuilder
from airflow_provider_raybatch.job.replica.shared_answers import shared_outputs
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.steps.way import InChunk, Ranking, renderer_of
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
