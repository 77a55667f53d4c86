# SPDX-License-Identifier: Apache-2.0
"""Which of some rows have an answer already. Reads; counts nothing as used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from airflow_provider_raybatch.contract.preview import Answered
from airflow_provider_raybatch.job.parts.ledger import Ledger
from airflow_provider_raybatch.job.request import keys as request_keys
from airflow_provider_raybatch.job.reuse.earlier_parts import LedgerResponses
from airflow_provider_raybatch.job.reuse.hits import Responses
from airflow_provider_raybatch.job.reuse.reuse import parts_of_task
from airflow_provider_raybatch.job.work import Job


def answered(
    job: Job, earlier: Ledger, store: Responses | None, rows: Mapping[int, bytes]
) -> dict[int, Answered]:
    """Where the rows have an answer, in the order in which a job searches; without those that have none.

    :param earlier: of the same input and requests.
    :param rows: request keys by ordinal.
    """
    found: dict[int, Answered] = {ordinal: "earlier job" for ordinal in rows if earlier.good[ordinal]}
    own = f"{job.run_folder}/"
    elsewhere = [part for part in parts_of_task(job) if not part.path.startswith(own)]
    if elsewhere:
        carried = LedgerResponses(job.folder, elsewhere, damaged=lambda path: None)
        _add(found, rows, carried, "earlier input")
    if store is not None:
        _add(found, rows, store, "response store")
    return found


def _add(found: dict[int, Answered], rows: Mapping[int, bytes], source: Responses, what: Answered) -> None:
    left = {ordinal: key for ordinal, key in rows.items() if ordinal not in found}
    if not left:
        return
    keys = np.unique(request_keys.as_array(list(left.values())))
    # Of NumPy's bytes, zeros at the end are not shown.
    hits = {keys[place : place + 1].tobytes() for place in source.lookup(keys).places.tolist()}
    found.update({ordinal: what for ordinal, key in left.items() if key in hits})
