# SPDX-License-Identifier: Apache-2.0
"""One attempt of the task, up to its list of work, which is a resume."""

from __future__ import annotations

import json
from typing import Any

from places import DESTINATION, INPUT, Place

ROWS_PER_PART = 4096
"""As the job plans them for ten million rows."""


class Attempt:
    """One attempt of the task, up to its list of work."""

    def __init__(self, place: Place, submission: int) -> None:
        from airflow_provider_raybatch.contract import layout
        from airflow_provider_raybatch.contract.base import parse
        from airflow_provider_raybatch.contract.manifest import Digests
        from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
        from airflow_provider_raybatch.job.preflight.checked_job import request_config_digest
        from airflow_provider_raybatch.job.preflight.input_check import read_source
        from airflow_provider_raybatch.job.request.keys import Keyer
        from airflow_provider_raybatch.job.work import Job

        document = {
            "source": [f"{place.root}/{INPUT}/"],
            "prompt_column": "text",
            "model": "echo",
            "engine": "echo",
            "sampling": {"temperature": 0},
            "destination": f"{place.root}/{DESTINATION}",
            "submission": {
                "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "resume"},
                "run_token": "token",
                "submission_id": f"raybatch-benchmark-{submission}",
            },
        }
        spec: Any = parse(BatchInferenceSpec, json.dumps(document))
        self.source = read_source(spec, place.credentials)
        keyer = Keyer(spec, {}, Digests())
        self.run_folder = layout.run_folder(
            spec.submission, request_config_digest(spec, spec.submission, keyer), self.source.listing.digest
        )
        driver = layout.driver_folder(self.run_folder, spec.submission.submission_id)
        self.job = Job(
            spec,
            self.source.listing,
            place.folder(DESTINATION),
            driver,
            keyer,
            credentials=place.credentials,
        )

    def plan_work(self, store: Any = None) -> int:
        """Do the steps of a job before its engine starts; return the number of missing rows.

        :param store: folder of a response store, if there is one.
        """
        from airflow_provider_raybatch.job.parts.ledger import look_back
        from airflow_provider_raybatch.job.reuse.response_store import StoredResponses
        from airflow_provider_raybatch.job.reuse.reuse import plan_reuse
        from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
        from airflow_provider_raybatch.job.work import in_sequence, work

        ledger = look_back(self.job.folder, self.run_folder, self.source.rows)
        stored = None if store is None else StoredResponses(ResponseStore(store, print))
        resolved = ledger.good.copy()
        reuse_plan = plan_reuse(
            self.job, self.source, ledger, resolved, stored, in_sequence, lambda phase: None
        )
        reuse_plan.write_parts(self.job, self.source)
        resolved |= reuse_plan.rows
        items = work(self.source, ROWS_PER_PART, resolved, reuse_plan.repetitions)
        return sum(len(item.positions) for item in items)
