# SPDX-License-Identifier: Apache-2.0
"""How vLLM's engine starts beside others on its GPU, whose memory comes and goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_started
from tests.support.specs import spec

MEASURED = (
    "Error in memory profiling. Initial free memory 82.94 GiB, current free memory 90.17 GiB. This happens "
    "when other processes sharing the same container release GPU memory."
)
TAKEN = "Free memory on device cuda:0 (40.1/139.8 GiB) on startup is less than desired GPU memory utilization"


class Engine(vllm_started.StartedVllm):
    def _serve(self, spec: BatchInferenceSpec) -> None:
        return


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Let the next starts fail with these errors; the list has the engines that started."""

    def of(*errors: Exception) -> list[str]:
        left, started = list(errors), list[str]()

        def start(args: Any) -> str:
            if left:
                raise left.pop(0)
            started.append("an engine")
            return "an engine"

        monkeypatch.setattr(vllm_compat, "start_engine", start)
        return started

    monkeypatch.setattr(vllm_started, "engine_args", lambda spec, spans_nodes: {})
    monkeypatch.setattr(vllm_started, "_PAUSE", 0.0)
    return of


@pytest.mark.parametrize("error", [AssertionError(MEASURED), ValueError(TAKEN)])
def test_memory_of_a_neighbour_that_ends_costs_another_try(
    fails: Callable[..., list[str]], error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    started = fails(error, error)
    Engine(spec(num_gpus=0.5))
    assert started == ["an engine"]
    assert capfd.readouterr().err.count("num_gpus: the engine starts once more (") == 2


@pytest.mark.parametrize(
    ("errors", "fields", "failure_class"),
    [
        ([AssertionError(MEASURED)] * 3, {"num_gpus": 0.5}, FailureClass.ENGINE_DEAD),
        ([ValueError(TAKEN)] * 3, {"num_gpus": 0.5}, FailureClass.OUT_OF_MEMORY),
        ([AssertionError(MEASURED)], {}, FailureClass.ENGINE_DEAD),
        ([ValueError("no such dtype")], {"num_gpus": 0.5}, FailureClass.USER_ERROR),
    ],
)
def test_other_failures_end_the_start(
    fails: Callable[..., list[str]],
    errors: list[Exception],
    fields: dict[str, Any],
    failure_class: FailureClass,
) -> None:
    started = fails(*errors)
    with pytest.raises(RaybatchError, match=r"^engine_args: the engine did not start: ") as caught:
        Engine(spec(**fields))
    assert caught.value.failure_class is failure_class
    assert started == []
