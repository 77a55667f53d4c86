# SPDX-License-Identifier: Apache-2.0
"""Rows in buckets outlive the nodes on which CPU tasks have made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ray_processes import run_with_own_ray

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.thorough("buckets of lost nodes; a Ray of three nodes"),
]


def test_buckets_of_lost_nodes_are_made_again(tmp_path: Path) -> None:
    """By the tasks that made them: a replica gets each row once, those of a document together."""
    seen, errors = run_with_own_ray("lost_buckets.py", str(tmp_path), seconds=360)
    assert sorted(seen["rows"]) == list(range(2000))
    assert seen["changes"] == 499
    assert "lost objects by resubmitting their tasks" in errors
