# SPDX-License-Identifier: Apache-2.0
"""Inputs so large that their keys come in ranges and lie in files, without their size."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.reuse import partitions, row_keys


@pytest.fixture(params=["at once", "in ranges"])
def ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are resolved at once, or one at a time."""
    if request.param == "in ranges":
        monkeypatch.setattr(row_keys, "_ROWS_PER_RANGE", 1)
        monkeypatch.setattr(partitions, "_MOST_IN_MEMORY", 0)
