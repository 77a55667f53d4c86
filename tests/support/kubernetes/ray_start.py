# SPDX-License-Identifier: Apache-2.0
"""The `ray start` command of a pod: as KubeRay writes it, and as it runs on this machine beside others."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.quantities import amount

START_COMMAND = "KUBERAY_GEN_RAY_START_CMD"
_WITH_VALUES = {"log-color", "include-dashboard", "include-log-monitor"}
_OBJECT_STORE_BYTES = 100_000_000


def start_command(group: Manifest, node_type: str, autoscaled: bool) -> str:
    """The command that KubeRay 1.7 generates, without the defaults of ports (`generateRayStartCommand`)."""
    given: dict[str, str] = {"block": "true", **(group.get("rayStartParams") or {})}
    if node_type == "head" and autoscaled:
        given["no-monitor"] = "true"
    if node_type == "worker":
        given.setdefault("address", "$HEAD")
    resources = group["template"]["spec"]["containers"][0].get("resources") or {}
    limits: Mapping[str, Any] = resources.get("limits") or {}
    cpus = limits.get("cpu") or (resources.get("requests") or {}).get("cpu")
    if cpus is not None:
        given.setdefault("num-cpus", str(-int(-amount(str(cpus)) // 1)))
    if "memory" in limits:
        given.setdefault("memory", str(int(amount(str(limits["memory"])))))
    for name, quantity in sorted(limits.items()):
        if name.endswith("gpu") and amount(str(quantity)):
            given.setdefault("num-gpus", str(int(amount(str(quantity)))))
    flags = [_flag(name, value) for name, value in sorted(given.items())]
    return " ".join(["ray start", *(["--head"] if node_type == "head" else []), *filter(None, flags)])


def _flag(name: str, value: str) -> str:
    if value.lower() in {"true", "false"} and name not in _WITH_VALUES:
        return f"--{name}" if value.lower() == "true" else ""
    return f"--{name}={value}"


def local_command(command: str, ray: str, own: Mapping[str, object]) -> list[str]:
    """The command for this machine.

    :param ray: the program.
    :param own: options that replace KubeRay's: addresses, ports and folders.
    """
    _, _, *options = shlex.split(command)
    kept = [option for option in options if option.removeprefix("--").partition("=")[0] not in own]
    store = [] if any("object-store-memory" in option for option in kept) else [_OBJECT_STORE_BYTES]
    return [
        ray,
        "start",
        *kept,
        *(f"--{name}={value}" for name, value in own.items()),
        *(f"--object-store-memory={size}" for size in store),
    ]
