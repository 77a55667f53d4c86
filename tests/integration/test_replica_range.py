# SPDX-License-Identifier: Apache-2.0
"""Replicas that come and go with the nodes of a cluster, and replicas over several nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ray_processes import run_with_own_ray

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(960),
    pytest.mark.thorough("a range of replicas on a Ray of five nodes; minutes of waits"),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `replica_range.py` saw: three jobs on one cluster, which takes as long as all the rest."""
    folder = str(tmp_path_factory.mktemp("jobs"))
    return run_with_own_ray("replica_range.py", folder, seconds=900)[0]


def test_a_replica_whose_node_comes_too_late_opens_no_engine(seen: Any) -> None:
    """Its GPU is free while the first one has its last row."""
    found = seen["too_late"]
    assert found["engines"] == 1
    assert "starting 1 to 2 replicas with 1 GPU each (set by replicas=(1, 2)" in found["said"][2]
    assert "9 of 10 rows are kept" in found["error"]


def test_a_replica_joins_and_leaves_while_the_job_runs(seen: Any) -> None:
    """Two leave, and their GPUs are free then, though a fourth had waited, whose process never started."""
    found = seen["in_time"]
    assert found["closed"] == 2
    assert len(found["answers"]) == 3
    assert min(found["answers"]) > 0
    assert found["prompts"] == sum(found["answers"]) == 120
    assert "120 of 121 rows are kept" in found["error"]


def test_a_replica_over_nodes_restarts_when_a_worker_dies(seen: Any) -> None:
    found = seen["over_nodes"]
    assert found["nodes"] == [2, 2]
    assert found["gpus"] == [[["0"], ["0"]]] * 2
    assert "with 2 GPUs each, over several nodes (" in found["said"][2]
    assert "16 of 17 rows are kept" in found["error"]


def test_a_placement_group_goes_when_its_replica_is_not_needed(seen: Any) -> None:
    """One that waited for nodes, which came when no row was left; and all when the job ends."""
    found = seen["over_nodes"]
    assert found["waiting"] == {"CREATED": 1, "PENDING": 1}
    assert (found["engines"], found["held"]) == (2, 1)  # the first opened two
    assert found["groups"] == {"REMOVED": 2}
    assert seen["free"] == 4
