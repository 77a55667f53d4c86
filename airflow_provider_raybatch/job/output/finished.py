# SPDX-License-Identifier: Apache-2.0
"""What is finished of an input, by its parts alone: for a job that asks no row any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.output.openai_batch.unanswered import is_unanswered
from airflow_provider_raybatch.job.parts.ledger import RowMask, add_up
from airflow_provider_raybatch.job.parts.part import Part, listed
from airflow_provider_raybatch.job.work import Job


@dataclass(frozen=True)
class Finished:
    """The rows that need nothing any more.

    :param parts: with all of them.
    :param good: how many have a good answer, and `failed` how many a failure.
    :param rows: which they are, those among them that an earlier driver has noted as without an answer.
    """

    parts: tuple[Part, ...]
    good: int
    failed: int
    rows: RowMask


def finished(job: Job, source: Source) -> Finished:
    """Look up what all drivers of the job's input have written.

    :raises StorageError: the parts can't be listed or read.
    """
    found = listed(job.folder.list(job.run_folder))
    asked = [part for part in found if not is_unanswered(part)]
    answered = add_up(job.folder, asked, source.rows)
    noted = add_up(job.folder, [part for part in found if is_unanswered(part)], source.rows)
    failed = answered.failures > 0
    return Finished(
        (*answered.parts, *noted.parts),
        answered.rows,
        int(np.count_nonzero(failed)),
        answered.good | failed | (noted.failures > 0),
    )
