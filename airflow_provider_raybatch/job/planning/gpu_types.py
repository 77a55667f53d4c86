# SPDX-License-Identifier: Apache-2.0
"""Which accelerator type the GPUs of a node have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import ray

from airflow_provider_raybatch.job.planning.node_groups import ACCELERATOR, accelerator_types

_LABEL = "ray.io/accelerator-type"


class GpuTypes:
    """Looks up each node once; a node's type does not change, and is known after its end.

    :param asked: `accelerator_type` of the job.
    :param priced: types that have a price of their own.
    """

    def __init__(self, asked: str | None = None, priced: Collection[str] = ()) -> None:
        self._asked, self._priced = asked, priced
        self._known: dict[str, str] = {}

    def __call__(self, node: str) -> str:
        """The type of the node with this id, by default the one that was asked for; ``""`` if none was."""
        if node not in self._known:
            self.look()
        return self._known.setdefault(node, self._asked or "")

    def look(self) -> set[str]:
        """Look up all nodes.

        :returns: the types of those that are alive and have GPUs.
        """
        nodes = ray.nodes()
        alive = [node for node in nodes if node["Alive"]]
        self._known |= self._types_of(alive)
        # Of one that has died, only the labels are left.
        dead = self._types_of(node for node in nodes if not node["Alive"])
        self._known = {node: kind for node, kind in dead.items() if kind} | self._known
        return {self._known[node["NodeID"]] for node in alive if node["Resources"].get("GPU")}

    def _types_of(self, nodes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        return {node["NodeID"]: type_of(node, self._asked, self._priced) for node in nodes}


def type_of(node: Mapping[str, Any], asked: str | None, priced: Collection[str]) -> str:
    """The type by which a node's GPUs are billed; ``""`` where it is not known.

    A node may have several names, such as "A100" and "A100-40G": one with a price counts first, then the
    one that the job asked for, then the longer one.

    :param node: as Ray describes it.
    """
    names = {name.removeprefix(ACCELERATOR) for name in node["Resources"] if name.startswith(ACCELERATOR)}
    names |= {str(label) for label in [node.get("Labels", {}).get(_LABEL)] if label}
    with_price: list[str] = sorted(names.intersection(priced), key=lambda name: (-len(name), name))
    if with_price:
        return with_price[0]
    if asked in names:
        return str(asked)
    return accelerator_types({ACCELERATOR + name: 1.0 for name in sorted(names)})[0] or ""
