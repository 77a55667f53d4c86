# SPDX-License-Identifier: Apache-2.0
"""What the manifest says of each replica."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.output.report import _stats

FIRST = 1_700_000_000.0


@pytest.mark.parametrize(
    ("request_at", "answer_at", "first", "began", "ended"),
    [
        pytest.param(FIRST + 1.5, FIRST + 9.25, FIRST, 1.5, 9.25, id="second replica"),
        pytest.param(0.0, FIRST - 4, FIRST, 0.0, 0.0, id="only rows that fail before the engine"),
        pytest.param(0.0, FIRST, 0.0, 0.0, 0.0, id="no request at all"),
    ],
)
def test_seconds_of_a_replica(
    request_at: float, answer_at: float, first: float, began: float, ended: float
) -> None:
    report = ReplicaProgress("replica", "node", first_request=request_at, last_answer=answer_at, gpus=["3"])
    found = _stats(report, first)
    assert (found.began_seconds, found.ended_seconds, found.gpus) == (began, ended, ["3"])
