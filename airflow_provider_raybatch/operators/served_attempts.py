# SPDX-License-Identifier: Apache-2.0
"""When a batch of the Batch API has been tried often enough, so that the model's next batches get their turn.

An attempt that fails before its job runs waits for a cluster that no other batch would get either. Where jobs
run and fail one after the other without one more answer, the batch or its model is the reason.
"""

from __future__ import annotations

import time

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined] # exported, but missing in the stub file

from airflow_provider_raybatch.contract.base import ContractModel, parse
from airflow_provider_raybatch.contract.batch_api.states import BatchState
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.operators.run_record import AttemptLike, Store

MOST_IN_VAIN = 5
"""Attempts in a row whose jobs run and answer no further request."""
LEAST_SECONDS = 600.0
"""From the first of them to the last: nodes that are lost one after the other need some minutes to settle."""
_KEY = "raybatch_attempts_in_vain"
_SAYS_NOTHING = frozenset({
    FailureClass.CLUSTER_UNREACHABLE, FailureClass.STORAGE, FailureClass.CANCELLED, FailureClass.TIMEOUT,
})  # fmt: skip
"""Failures that say nothing about the batch."""
_BY_ENGINE = frozenset({FailureClass.ENGINE_DEAD, FailureClass.OUT_OF_MEMORY})
"""Failures of jobs that had begun, also where they died before they wrote how far they were."""


class AttemptsInVain(ContractModel):
    """Attempts since the last answer; kept in Airflow's task state store.

    :param max_tries: the task instance's, which a clear raises: then they are counted anew.
    :param answered: requests with an answer or an error, after the last attempt.
    :param written: when a job wrote that; each writes it when it begins to ask.
    :param since: when the first of them failed.
    """

    max_tries: int
    count: int = 0
    answered: int = 0
    written: float = 0.0
    since: float = 0.0

    @property
    def are_enough(self) -> bool:
        """Whether no other attempt makes sense."""
        return self.count >= MOST_IN_VAIN and time.time() - self.since >= LEAST_SECONDS

    def after(self, state: BatchState, failure_class: FailureClass) -> AttemptsInVain:
        """With an attempt that has failed just now.

        :param state: of the batch after it.
        """
        counts, written = state.counts, 0.0 if state.progress is None else state.progress.at
        answered = counts.completed + counts.failed
        has_run = written != self.written or failure_class in _BY_ENGINE
        count, since = self.count, self.since
        if answered > self.answered:
            count = 0
        elif has_run and failure_class not in _SAYS_NOTHING:
            count, since = count + 1, since if count else time.time()
        return AttemptsInVain(
            max_tries=self.max_tries, count=count, answered=answered, written=written, since=since
        )


def attempts_in_vain(
    store: Store, attempt: AttemptLike, state: BatchState, failure_class: FailureClass
) -> AttemptsInVain:
    """Note that an attempt has failed; see :meth:`AttemptsInVain.after`. Raises what `store` raises."""
    known = AttemptsInVain(max_tries=attempt.max_tries)
    try:
        found = parse(AttemptsInVain, store.get(_KEY) or {})
    except SpecError:
        found = known  # there is none, or someone has changed it
    noted = (found if found.max_tries == known.max_tries else known).after(state, failure_class)
    store.set(_KEY, noted.model_dump(mode="json"), retention=NEVER_EXPIRE)
    return noted
