# SPDX-License-Identifier: Apache-2.0
"""A job that answers a batch of the Batch API."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.location import FolderLocation


class ServedBatch(ContractModel):
    """The batch that a job answers.

    :param folder: with the documents of the batch; its dataset lies below it.
    :param expires_at: epoch seconds after which the rows that are left get no answer.
    """

    folder: FolderLocation
    expires_at: float


class ServedArguments(ContractModel):
    """What a job knows of the batch that it answers.

    :param served_batch: its lines without an answer become error lines when the batch expires or is
        cancelled; ``None`` for a job that answers all rows or none.
    """

    served_batch: ServedBatch | None = Field(default=None)
