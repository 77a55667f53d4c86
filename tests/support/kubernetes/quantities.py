# SPDX-License-Identifier: Apache-2.0
"""Quantities of Kubernetes, for its stand-in."""

from __future__ import annotations

from collections import Counter

from tests.support.kubernetes.kinds import Manifest

_UNITS = {
    "m": 0.001, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip


def amount(quantity: str) -> float:
    """A quantity of Kubernetes as a number."""
    number = quantity.rstrip("KMGTikm")
    return float(number) * _UNITS[quantity[len(number) :]]


def requests_of(pod: Manifest) -> dict[str, float]:
    """What a pod's containers ask for, together."""
    total: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        given = container.get("resources") or {}
        for name, quantity in {**(given.get("limits") or {}), **(given.get("requests") or {})}.items():
            total[name] += amount(str(quantity))
    return dict(total)
