# SPDX-License-Identifier: Apache-2.0
"""A pod's template is merged by key, and lists of named items by name."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.kubernetes.kuberay.pods import merged

BASE = {
    "metadata": {"annotations": {"a": "1", "b": "2"}},
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "ray-worker", "image": "x", "env": [{"name": "A", "value": "1"}]}],
        "tolerations": [{"key": "x"}],
        "readinessGates": [1],
    },
}


def test_fields_are_merged_and_null_removes() -> None:
    found = merged(BASE, {"metadata": {"annotations": {"a": "3", "b": None}}})
    assert found == {**BASE, "metadata": {"annotations": {"a": "3"}}}
    assert BASE["metadata"] == {"annotations": {"a": "1", "b": "2"}}


def test_named_items_are_merged_and_new_ones_added() -> None:
    variables = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}, {"name": "B", "value": "2"}]
    container = {"name": "ray-worker", "env": variables}
    found = merged(BASE, {"spec": {"containers": [container, {"name": "side", "image": "y"}]}})
    ray, side = found["spec"]["containers"]
    assert (ray["image"], ray["env"]) == ("x", variables)
    assert side == {"name": "side", "image": "y"}


def test_tolerations_are_added_and_other_lists_replaced() -> None:
    """A pod that tolerates one taint more still tolerates that of its GPUs."""
    spec = merged(BASE, {"spec": {"tolerations": [{"key": "spot"}], "readinessGates": []}})["spec"]
    assert spec["tolerations"] == [{"key": "x"}, {"key": "spot"}]
    assert spec["readinessGates"] == []
    assert spec["containers"][0]["image"] == "x"


def test_item_without_its_key_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"^pod_override\.spec\.volumes: item 0 has no name, by which it is merged"
    ):
        merged(BASE, {"spec": {"volumes": [{"emptyDir": {}}]}})
