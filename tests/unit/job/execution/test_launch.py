# SPDX-License-Identifier: Apache-2.0
"""When replicas start before their rows are known, and how many."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.execution import launch as module
from airflow_provider_raybatch.job.execution.launch import Launch
from airflow_provider_raybatch.job.execution.question import Question
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.plan import Cluster, Plan
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.specs import submitted

GPU_NODE = {"CPU": 8.0, "GPU": 2.0}
VLLM = {"engine": "vllm", "model": "m"}


class Started:
    """Stands for replicas on a cluster."""

    def __init__(self, spec: Any, environment: Any, folder: Any, plan: Plan) -> None:
        self.plan, self.is_dismissed = plan, False

    def ask(self, question: Question) -> Any:
        return question.function(*question.arguments)

    def dismiss(self) -> None:
        self.is_dismissed = True


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """The nodes of the cluster."""
    found = [GPU_NODE]
    monkeypatch.setattr(module, "Replicas", Started)
    monkeypatch.setattr(cluster_view, "view", lambda: Cluster(tuple(found)))
    monkeypatch.setattr(cluster_view, "has_idle", lambda plan: True)
    return found


def asked(**fields: Any) -> BatchInferenceSpec:
    return submitted(**{"source": ["/in"], "prompt": "{row.x}", "destination": "/out", **VLLM, **fields})


def started(launch: Launch, rows: int = 1000, **fields: Any) -> Started | None:
    launch.early(asked(**fields), {}, LocalFolder("/out"), rows)
    found: Any = launch._replicas
    return found


def test_all_that_have_room_start(nodes: list[dict[str, float]]) -> None:
    found = started(Launch())
    assert found is not None
    assert (found.plan.replicas, found.plan.gpus) == (2, 1)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"rows": 0}, id="nothing to do"),
        pytest.param({"engine": "ray_data_llm"}, id="Ray's own processor"),
        pytest.param({"replicas": (1, 4)}, id="replicas that come and leave"),
        pytest.param({"replicas": 3}, id="no room"),
        pytest.param({"engine_args": {"tensor_parallel_size": 4}}, id="GPUs of several nodes"),
    ],
)
def test_none_starts(nodes: list[dict[str, float]], fields: dict[str, Any]) -> None:
    if "engine_args" in fields:
        nodes.append(GPU_NODE)
    assert started(Launch(), **fields) is None


def test_replicas_are_asked_if_they_start_soon(
    nodes: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch()
    assert launch.ask(len, "four") is None
    started(launch)
    assert launch.ask(len, "four") == 4
    monkeypatch.setattr(cluster_view, "has_idle", lambda plan: False)
    started(launch)
    assert launch.ask(len, "four") is None


def test_there_stay_as_many_as_have_started(nodes: list[dict[str, float]]) -> None:
    with Launch() as launch:
        found = started(launch)
        nodes += [GPU_NODE] * 3
        assert launch.plan(asked(), 3).replicas == 2
        assert launch.plan(asked(), 3).rows_per_chunk == 8
        assert Launch().plan(asked(), 3).replicas == 1
        assert found is not None
        assert not found.is_dismissed
    assert found.is_dismissed
