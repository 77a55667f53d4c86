# SPDX-License-Identifier: Apache-2.0
"""Cancel a batch: decide that it ends so, unless it is decided already how it ends."""

from __future__ import annotations

from airflow_provider_raybatch.batches.ending import decided
from airflow_provider_raybatch.batches.store import BatchStore
from airflow_provider_raybatch.contract.batch_api.states import BatchState
from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError
from airflow_provider_raybatch.plugins.batch_api.runs import DagRuns
from airflow_provider_raybatch.plugins.batch_api.upkeep import Upkeep


def cancelled(store: BatchStore, state: BatchState, runs: DagRuns, upkeep: Upkeep) -> BatchState:
    """The batch after its cancellation: ``cancelled`` if its task had not begun, else ``cancelling``.

    The job sees the decision within seconds, and publishes what is finished.

    :raises OpenAiError: 400, it has ended another way, or is about to. Official clients repeat 409 by
        themselves, which would not help.
    """
    if state.outcome is None and not state.is_over:
        decided(store, state.record.id, "cancelled")
        state = store.state(state.record.id) or state
    if state.status not in {"cancelling", "cancelled"}:
        raise OpenAiError(
            400,
            f"Batch {state.record.id!r} is {state.status}, so it can't be cancelled.",
            code="batch_not_cancellable",
        )
    return upkeep.looked_after(store, state, runs)
