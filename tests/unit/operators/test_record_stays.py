# SPDX-License-Identifier: Apache-2.0
"""The run record survives Airflow's own sweep of its task state store, however late a retry comes."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]

from airflow_provider_raybatch.operators.run_record import current_run, forget_earlier, record_result
from tests.support.airflow_tasks import Store


class Swept(Store):
    """A store that Airflow sweeps after each write: only values without an expiry stay."""

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        super().set(key, value)
        self.expires = retention != NEVER_EXPIRE

    def sweep(self) -> None:
        if self.expires:
            self.values.clear()


def test_a_retry_that_comes_late_finds_its_run() -> None:
    store = Swept()
    tokens = set()
    for number in (1, 2, 3):
        attempt: Any = SimpleNamespace(try_number=number, max_tries=5)
        run = current_run(store, attempt, lambda: "n")
        tokens.add(run.token)
        forget_earlier(store, run.token)
        if number == 2:
            record_result(store, run.token, attempt, "f", {"rows": 1})
        store.sweep()
    assert len(tokens) == 1
    assert run.result == {"rows": 1}
