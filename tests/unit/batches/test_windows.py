# SPDX-License-Identifier: Apache-2.0
"""Which windows a batch may have."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.batches.windows import window_seconds


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("24h", 86400), ("10m", 600), ("90m", 5400), ("1h", 3600), ("3d", 259200), ("14d", 1209600)],
)
def test_windows_have_a_length(given: str, seconds: int) -> None:
    assert window_seconds(given) == seconds


@pytest.mark.parametrize(
    "given",
    ["", "9m", "0h", "15d", "337h", "20161m", "24", "h", "1w", "24H", " 24h", "24h\n", "1.5h", "-1h", "٢٤h",
     "999999999999999999d", None, 24, True, ["24h"], {"hours": 24}],
)  # fmt: skip
def test_other_windows_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="it must be from 10 minutes to 14 days"):
        window_seconds(given)


def test_strict_accepts_openais_window_alone() -> None:
    assert window_seconds("24h", strict=True) == 86400
    with pytest.raises(ValueError, match="must be '24h', but it is '1h'"):
        window_seconds("1h", strict=True)
