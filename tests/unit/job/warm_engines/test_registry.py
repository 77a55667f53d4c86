# SPDX-License-Identifier: Apache-2.0
"""Which warm engines are found, and which are ended since they wait for a job that is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from airflow_provider_raybatch.job.warm_engines import registry as module
from airflow_provider_raybatch.job.warm_engines.registry import (
    NAMESPACE,
    WarmEngineRegistry,
    maker_name,
    name_of,
)

MAKER = "abcd0123"


class Cluster:
    """Actors that wait for room, so that none answers."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.exceptions = ray.exceptions
        self.util = SimpleNamespace(
            list_named_actors=lambda all_namespaces: [
                {"name": name, "namespace": NAMESPACE} for name in self.names
            ]
        )

    def get_actor(self, name: str, namespace: str) -> Any:
        return SimpleNamespace(name=name, state=SimpleNamespace(remote=object))

    def wait(self, answers: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [], answers

    def kill(self, actor: Any) -> None:
        self.names.remove(actor.name)


@pytest.mark.parametrize("model", ["Llama-3", "Qwen3-0.6B-GGUF:IQ1_S", "2026-11-24T10:00:00"])
def test_engines_that_wait_for_a_living_job_stay(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    cluster = Cluster([name_of("key", model, MAKER, 0), maker_name(MAKER)])
    monkeypatch.setattr(module, "ray", cluster)
    now = [0.0]
    registry = WarmEngineRegistry("key", clock=lambda: now[0])
    for now[0] in (0.0, 3600.0):
        assert list(registry.states()) == [name_of("key", model, MAKER, 0)]
        assert not registry.ownerless
    cluster.names.remove(maker_name(MAKER))
    assert list(registry.states()) == [name_of("key", model, MAKER, 0)]
    assert registry.states() == {}


def test_engines_of_a_job_that_is_gone_may_still_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    name = name_of("key", "llama", MAKER, 0)
    monkeypatch.setattr(module, "ray", Cluster([name]))
    now = [0.0]
    registry = WarmEngineRegistry(clock=lambda: now[0])
    for now[0] in (0.0, 29.0):
        assert registry.states() == {name: None}
        assert registry.ownerless == {name}
    now[0] = 31.0
    registry.states()
    assert registry.states() == {}
    assert not registry.ownerless
