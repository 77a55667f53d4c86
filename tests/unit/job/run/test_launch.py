# SPDX-License-Identifier: Apache-2.0
"""When replicas start before their rows are known, and how many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.plan import ClusterView, Plan
from airflow_provider_raybatch.job.replica.remote_call import RemoteCall
from airflow_provider_raybatch.job.row_order.rows_to_do import Input
from airflow_provider_raybatch.job.run import launch as module
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.run.replicas import Replicas
from airflow_provider_raybatch.job.warm_engines.registry import EngineKey, WarmEngineRegistry, WarmEngineState
from airflow_provider_raybatch.job.warm_engines.warm_source import WarmEngineSource
from airflow_provider_raybatch.job.work import CheckedModel
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.specs import submitted

GPU_NODE = {"CPU": 8.0, "GPU": 2.0}
VLLM = {"engine": "vllm", "model": "m"}
WARM = WarmEngineSource(EngineKey("digest", "m", "m", 1, None, 60.0), most=1)


class Started:
    """Stands for replicas on a cluster."""

    def __init__(self, spec: Any, environment: Any, folder: Any, plan: Plan) -> None:
        self.spec, self.plan, self.is_dismissed = spec, plan, False

    def load(self, model: CheckedModel) -> None:
        pass

    def begin(self, job: Any, plan: Plan, work: Any) -> None:
        pass

    def ask(self, question: RemoteCall) -> Any:
        return question.function(*question.arguments)

    def release(self) -> None:
        self.is_dismissed = True


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """The nodes of the cluster."""
    found = [GPU_NODE]
    monkeypatch.setattr(module, "Replicas", Started)
    monkeypatch.setattr(cluster_view, "view", lambda: ClusterView(tuple(found)))
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


def test_late_replicas_want_the_same_engine(nodes: list[dict[str, float]]) -> None:
    """What warm engine they look for is decided by the spec before its model was checked."""
    launch, spec = Launch(), asked(replicas=(1, 4))
    launch.early(spec, {}, LocalFolder("/out"), 1000)
    checked = spec.model_copy(update={"engine_args": {"revision": "0123abc"}})
    launch.load(CheckedModel(checked))
    job: Any = SimpleNamespace(spec=checked, environment={}, folder=LocalFolder("/out"))
    found: Any = launch.replicas(job, launch.plan(checked, 1000), Input([], [], np.zeros(0, np.uint8)))
    assert found.spec is spec


def _late(*_: Any, **__: Any) -> None:
    raise ray.exceptions.GetTimeoutError("Get timed out: some object(s) not ready.")


def test_a_look_for_warm_engines_that_fails_is_no_failure(
    nodes: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_view, "has_idle", lambda plan: False)
    monkeypatch.setattr(WarmEngineRegistry, "states", _late)
    monkeypatch.setattr(module, "engine_source", lambda *_: WARM)
    assert started(Launch(), keep_warm=60) is not None


def test_a_refusal_is_what_the_task_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the coordinator is too busy to say whether warm engines are back."""
    monkeypatch.setattr(ray, "get", _late)
    found: Any = object.__new__(Replicas)
    found._source, found.pipeline, found.end = WARM, SimpleNamespace(join=lambda: None), str
    found.coordinator = SimpleNamespace(**{
        name: SimpleNamespace(remote=lambda: None) for name in ("release", "close")
    })
    launch = Launch()
    launch._replicas = found
    with pytest.raises(SpecError), launch:
        raise SpecError("model: 'm' does not exist.")


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


class Answering:
    """Actor of a warm engine."""

    def __init__(self, answer: Any) -> None:
        self.ask = SimpleNamespace(remote=lambda seconds, function, *arguments: answer)


@pytest.mark.parametrize("fields", [{"replicas": 1}, {"replicas": (1, 4)}], ids=["starts", "starts later"])
@pytest.mark.parametrize(
    ("is_free", "maker", "answer", "is_taken"),
    [
        pytest.param(True, "", ("beside", None), True, id="idle"),
        pytest.param(True, "", (None, SpecError("model: 'm' is none.")), True, id="refuses"),
        pytest.param(False, "", ("beside", None), False, id="in use"),
        pytest.param(True, "another", ("beside", None), False, id="new and another job's"),
        pytest.param(True, "", None, False, id="busy"),
        pytest.param(True, "", ray.exceptions.GetTimeoutError(), False, id="late"),
        pytest.param(True, "", ray.exceptions.ActorDiedError(), False, id="gone"),
        pytest.param(True, "", ray.exceptions.RaySystemError("it can't be read"), False, id="unreadable"),
    ],
)
def test_an_idle_engine_is_asked_first(
    nodes: list[dict[str, float]],
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    is_free: bool,
    maker: str,
    answer: Any,
    is_taken: bool,
) -> None:
    """On any doubt, the job does as without one."""

    def get(reference: Any, timeout: float) -> Any:
        if isinstance(reference, Exception):
            raise reference
        return reference

    state = WarmEngineState("m", is_free, False, 1.0, 9.0, "node", {"GPU": 1.0}, reserved_for=maker)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(WarmEngineRegistry, "states", lambda self: {"engine": state, "silent": None})
    monkeypatch.setattr(WarmEngineRegistry, "actor", lambda self, name: Answering(answer))
    monkeypatch.setattr(module, "engine_source", lambda *_: WARM)
    launch = Launch()
    has_started = started(launch, keep_warm=60, **fields) is not None
    if is_taken and answer[1] is not None:
        with pytest.raises(SpecError, match="'m' is none"):
            launch.ask(len, "four")
    else:
        otherwise = 4 if has_started else None
        assert launch.ask(len, "four") == ("beside" if is_taken else otherwise)


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
