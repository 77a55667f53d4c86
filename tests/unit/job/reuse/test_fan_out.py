# SPDX-License-Identifier: Apache-2.0
"""Rows with equal requests share an answer, even if earlier tries of that request failed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.job.parts import part as parts
from tests.support import attempts
from tests.support.attempts import GREEDY, Attempt
from tests.support.publishing import failure

pytestmark = pytest.mark.usefixtures("ranges")


def test_an_answer_counts_more_than_an_earlier_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Attempt(tmp_path, ["a", "a"], sampling=GREEDY)
    assert first.asked == [0]
    with monkeypatch.context() as patched:
        patched.setattr(attempts, "response", lambda text: failure())
        first.answer([0])
    second = Attempt(tmp_path, ["a", "a"], sampling=GREEDY, number=1)
    assert second.asked == [0]
    second.answer([0])
    ledger = parts.listed(second.job.folder.list(second.run_folder))
    assert [part.ok for part in ledger] == [0, 1]
    (shared,) = second.reuse_plan.fan_out(second.job, second.source, ledger)
    rows = pq.read_table(Path(second.job.folder.root, shared.path)).to_pylist()
    assert [(row["ordinal"], row["ok"]) for row in rows] == [(1, True)]
