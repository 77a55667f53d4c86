# SPDX-License-Identifier: Apache-2.0
"""By which accelerator type the GPUs of a node are billed."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from airflow_provider_raybatch.job.planning.gpu_types import GpuTypes, type_of


def node(*types: str, label: str | None = None, name: str = "n", alive: bool = True) -> dict[str, Any]:
    resources = {"GPU": 1.0, **{f"accelerator_type:{one}": 1.0 for one in types}}
    labels = {} if label is None else {"ray.io/accelerator-type": label}
    return {"NodeID": name, "Alive": alive, "Resources": resources if alive else {}, "Labels": labels}


@pytest.mark.parametrize(
    ("found", "asked", "priced", "kind"),
    [
        (node("H100"), None, (), "H100"),
        (node(), None, (), ""),
        (node(label="L4"), None, (), "L4"),
        (node("A100", "A100-40G"), None, ("*",), "A100-40G"),
        (node("A100", "A100-40G"), None, ("A100", "*"), "A100"),
        (node("A100", "A100-40G"), None, ("A100", "A100-40G"), "A100-40G"),
        (node("A100", "A100-40G"), "A100", ("H100",), "A100"),
        (node("MINE", "T4"), "MINE", (), "MINE"),
    ],
)
def test_type_of_a_node(found: dict[str, Any], asked: str | None, priced: tuple[str, ...], kind: str) -> None:
    assert type_of(found, asked, priced) == kind


def test_a_node_that_came_later_or_died_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, asked = [node("H100", name="a")], []
    monkeypatch.setattr(ray, "nodes", lambda: asked.append(1) or nodes)
    types = GpuTypes()
    assert [types("a"), types("a")] == ["H100", "H100"]
    nodes[:] = [node(name="a", alive=False), node("L4", name="b")]
    assert [types("b"), types("a"), types("gone"), types("gone")] == ["L4", "H100", "", ""]
    assert len(asked) == 3
    assert types.look() == {"L4"}


def test_a_node_that_died_before_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its label, or the type that was asked for: without a price, max_cost ended the job."""
    monkeypatch.setattr(ray, "nodes", lambda: [node(label="L4", name="a", alive=False)])
    assert [GpuTypes()("a"), GpuTypes()("gone"), GpuTypes("H100")("gone")] == ["L4", "", "H100"]
    assert GpuTypes().look() == set()
