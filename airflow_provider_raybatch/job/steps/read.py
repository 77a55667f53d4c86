# SPDX-License-Identifier: Apache-2.0
"""Which columns of the source all steps of a job need."""

from __future__ import annotations

from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.request.render import needed_columns
from airflow_provider_raybatch.job.work import Job


def reader_of(job: Job, whole: bool = True, earlier_images: bool = True) -> Reader:
    """What reads the rows of a job, with the values that its requests, conditions and row ids need.

    :param whole: see :class:`~airflow_provider_raybatch.job.input.reader.Reader`.
    :param earlier_images: whether steps before this one, whose answers are there, need their images.
    """
    steps = job.steps
    texts = {name for step in steps for name in step.spec.text_columns()}
    made = {name for step in steps for name in step.task.column_names}
    columns: list[str] | None = []
    for step in steps:
        shows = earlier_images or step is job
        spec = step.spec if shows else step.spec.model_copy(update={"images": []})
        needed, row_id = needed_columns(spec), filter(None, [spec.id_column])
        columns = None if columns is None or needed is None else [*columns, *needed, *row_id]
    if columns is not None:
        columns = [name for name in dict.fromkeys(columns) if name not in made]
    return Reader(job.listing, columns, job.credentials, whole, texts - made)
