# SPDX-License-Identifier: Apache-2.0
"""A provider of clusters is found when a task needs it, and named in one sentence where it is missing."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.places import providers
from airflow_provider_raybatch.places.choosing import acluster_of, given_cluster, place_of
from airflow_provider_raybatch.places.providers import ClusterDefinition, ClusterProvider
from airflow_provider_raybatch.sensors.ray_job import RayJobSensor


class Room(ClusterDefinition):
    provider = "rooms"
    name = "big"

    def check(self) -> None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {"provider": "rooms"}


class Rooms(ClusterProvider):
    def definition(self, given: Any) -> ClusterDefinition:
        return Room()

    def place(self, definition: Any) -> Any:
        return ("place of", definition.name)

    async def cluster(self, data: Any, submission_id: str) -> Any:
        return ("cluster of", submission_id)

    def outcome(self, facts: Any) -> Any:
        raise NotImplementedError

    def ready_trigger(self, waiting: Any, handle: Any, cancel_on_kill: bool) -> Any:
        raise NotImplementedError

    def ended_trigger(self, facts: Any, poll_interval: float) -> Any:
        return ("trigger of", poll_interval)


@pytest.fixture(autouse=True)
def rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {"rooms": f"{__name__}.Rooms", "kubernetes": "airflow_provider_raybatch.left_out.provider.One"}
    monkeypatch.setattr(providers, "PROVIDERS", paths)
    monkeypatch.setattr(providers, "import_module", lambda name: FOUND[name])


class _Found(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.rpartition(".")[0])


FOUND = _Found()
FOUND[__name__] = type("module", (), {"Rooms": Rooms})


async def test_each_question_goes_to_the_provider() -> None:
    data = {"provider": "rooms"}
    found = given_cluster(data)
    assert isinstance(found, Room)
    assert place_of("ray_default", found) == ("place of", "big")  # type: ignore[comparison-overlap]
    assert await acluster_of("", data, "id-1") == ("cluster of", "id-1")  # type: ignore[comparison-overlap]
    sensor = RayJobSensor(task_id="s", submission_id={"submission_id": "x", "ray_cluster": data})
    assert sensor._trigger(None) == ("trigger of", sensor.poke_interval)  # type: ignore[comparison-overlap]


def test_a_provider_that_is_left_out_is_one_sentence() -> None:
    with pytest.raises(SpecError) as caught:
        given_cluster({"image": "rayproject/ray:2.60.0"})
    assert str(caught.value) == (
        "ray_cluster: clusters of 'kubernetes' need airflow_provider_raybatch.left_out, which is not "
        "installed here; install airflow-provider-raybatch with it, or use ray_conn_id."
    )


def test_an_unknown_provider_is_named() -> None:
    with pytest.raises(SpecError, match=r"^ray_cluster: provider: 'cellar' is unknown; known are rooms, "):
        given_cluster({"provider": "cellar"})
