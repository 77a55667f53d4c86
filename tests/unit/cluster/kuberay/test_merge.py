# SPDX-License-Identifier: Apache-2.0
"""A patch is merged by key, and lists of named items by name."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.cluster.kuberay.pods import merged
from airflow_provider_raybatch.contract.failures import SpecError

BASE = {
    "rayVersion": "2.60.0",
    "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": 60},
    "workerGroupSpecs": [
        {
            "groupName": "a",
            "maxReplicas": 1,
            "template": {
                "spec": {
                    "containers": [
                        {"name": "ray-worker", "image": "x", "env": [{"name": "A", "value": "1"}]}
                    ],
                    "tolerations": [{"key": "x"}],
                }
            },
        },
        {"groupName": "b", "maxReplicas": 2},
    ],
}


def test_fields_are_merged_and_null_removes() -> None:
    found = merged(
        BASE, {"autoscalerOptions": {"idleTimeoutSeconds": 5, "version": None}, "rayVersion": "2.61.0"}
    )
    assert found["autoscalerOptions"] == {"idleTimeoutSeconds": 5}
    assert found["rayVersion"] == "2.61.0"
    assert BASE["autoscalerOptions"] == {"version": "v2", "idleTimeoutSeconds": 60}


def test_named_items_are_merged_and_new_ones_added() -> None:
    variables = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}, {"name": "B", "value": "2"}]
    container = {"name": "ray-worker", "env": variables}
    patch = {
        "workerGroupSpecs": [
            {
                "groupName": "a",
                "template": {"spec": {"containers": [container, {"name": "side", "image": "y"}]}},
            },
            {"groupName": "c", "maxReplicas": 3, "template": None},
        ]
    }
    groups = merged(BASE, patch)["workerGroupSpecs"]
    assert [group["groupName"] for group in groups] == ["a", "b", "c"]
    assert groups[1:] == [{"groupName": "b", "maxReplicas": 2}, {"groupName": "c", "maxReplicas": 3}]
    ray, side = groups[0]["template"]["spec"]["containers"]
    assert (ray["image"], ray["env"]) == ("x", variables)
    assert side == {"name": "side", "image": "y"}


def test_tolerations_are_added_and_other_lists_replaced() -> None:
    """A pod that tolerates one taint more still tolerates that of its GPUs."""
    more = {"tolerations": [{"key": "spot"}], "readinessGates": []}
    patch = {"workerGroupSpecs": [{"groupName": "a", "template": {"spec": more}}]}
    base = merged(
        BASE, {"workerGroupSpecs": [{"groupName": "a", "template": {"spec": {"readinessGates": [1]}}}]}
    )
    spec = merged(base, patch)["workerGroupSpecs"][0]["template"]["spec"]
    assert spec["tolerations"] == [{"key": "x"}, {"key": "spot"}]
    assert spec["readinessGates"] == []
    assert spec["containers"][0]["image"] == "x"


def test_item_without_its_key_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"^patch\.workerGroupSpecs: item 0 has no groupName, by which it is merged"
    ):
        merged(BASE, {"workerGroupSpecs": [{"maxReplicas": 9}]})
