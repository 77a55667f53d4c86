# SPDX-License-Identifier: Apache-2.0
"""The batches of the one who opens the page, read where the Batch API keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_raybatch.batches.settings import batch_api_settings
from airflow_provider_raybatch.batches.store import batch_store, usable
from airflow_provider_raybatch.contract.batch_api.states import BatchState
from airflow_provider_raybatch.plugins.refusal import NotShownError

_MOST = 100


@dataclass(frozen=True)
class OwnBatches:
    """What the page shows.

    :param states: newest first, at most 100.
    :param total: how many there are.
    """

    states: Sequence[BatchState] = field(default_factory=list)
    total: int = 0


def own_batches(owner: str) -> OwnBatches:
    """The newest batches of a user.

    :param owner: user id, as Airflow's auth manager has it.
    :raises NotShownError: this Airflow has no Batch API.
    """
    settings = batch_api_settings()
    if settings is None:
        raise NotShownError(
            "This Airflow has no Batch API: [raybatch] batch_api_root is not set; docs/batch_api tells how."
        )
    store = batch_store(settings)
    ids = [one.id for one in store.batches(owner)]

    def state(batch_id: str) -> BatchState | None:
        found = store.state(batch_id)
        # Keys are not signed, so they don't say whose a batch is.
        return found if found is not None and found.record.owner == owner else None

    return OwnBatches(usable(state, ids[:_MOST]), len(ids))
