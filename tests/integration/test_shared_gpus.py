# SPDX-License-Identifier: Apache-2.0
"""Engines that take a half of a GPU run beside each other on it: of two jobs, of one, and a warm one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ray_processes import run_with_own_ray

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(480),
    pytest.mark.thorough("engines on halves of a GPU; unit/job/planning shares GPUs always"),
]

SEEN: dict[str, dict[str, Any]] = {
    "three_jobs": {
        "gpus": [["0"]] * 3,
        "ok": [16] * 3,
        "shares": [0.5] * 3,
        "beside": True,
        "starts_apart": True,
        "third_waited": True,
    },
    "two_replicas": {
        "gpus": ["0", "0"],
        "plan": 0.5,
        "rows": True,
        "starts_apart": True,
        "holds_halves": True,
    },
    "warm_half": {
        "gpus": ["0"],
        "free": 0.5,
        "warm": 1,
        "beside": ["0"],
        "still_warm": 1,
        "whole": ["0"],
        "after": 0,
    },
}
"""What is seen in each scene of ``shared_gpus.py``."""


@pytest.mark.parametrize(
    "scenes",
    [
        pytest.param(("three_jobs", "two_replicas"), id="jobs and replicas"),
        pytest.param(("warm_half",), id="a warm engine"),
    ],
)
def test_engines_share_a_gpu(tmp_path: Path, scenes: tuple[str, ...]) -> None:
    seen, _ = run_with_own_ray("shared_gpus.py", str(tmp_path), *scenes, seconds=450)
    assert seen == {scene: SEEN[scene] for scene in scenes}
