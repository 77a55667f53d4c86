# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the DAG runs of Airflow, and models to make batches of."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.store.settings import ServedModel

CHAT = "/v1/chat/completions"


class RunsOfTests:
    """DAG runs in memory; see :class:`~airflow_provider_raybatch.batch_api.server.runs.AirflowRuns`.

    :ivar refusal: raised by each check and trigger.
    :ivar lost: each trigger makes the run, and then its answer is lost.
    """

    def __init__(self) -> None:
        self.runs: dict[str, datetime] = {}
        self.over: set[str] = set()
        self.questions = 0
        self.checks = 0
        self.triggers = 0
        self.check_refusal: OpenAiError | None = None
        self.refusal: OpenAiError | None = None
        self.lost = False
        self.silent = False
        self._lock = threading.Lock()

    def check(self, dag_id: str, model: str) -> None:
        self.checks += 1
        if self.check_refusal is not None:
            raise self.check_refusal

    def trigger(self, dag_id: str, run_id: str, run_after: datetime, model: str) -> None:
        with self._lock:
            self.triggers += 1
            if self.refusal is not None:
                raise self.refusal
            self.runs.setdefault(run_id, run_after)
        if self.lost:
            raise OpenAiError(503, "Airflow does not answer just now; try again.")

    def is_over(self, dag_id: str, run_id: str) -> bool | None:
        self.questions += 1
        if self.silent:
            return None
        return run_id in self.over or run_id not in self.runs


def models(names: Iterable[str] = ("small",), **fields: Any) -> dict[str, ServedModel]:
    """Served models by name."""
    return {
        name: ServedModel(**{
            "name": name,
            "dag_id": f"batches_{name}",
            "endpoints": (CHAT,),
            "arguments": {},
            **fields,
        })
        for name in names
    }
