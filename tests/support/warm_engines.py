# SPDX-License-Identifier: Apache-2.0
"""The warm engines of the Ray that this process is connected to."""

from __future__ import annotations

from airflow_provider_raybatch.job.warm_engines.registry import WarmEngineRegistry, WarmEngineState


def warm_engines() -> dict[str, WarmEngineState | None]:
    """Return what each says of itself, by name; ``None`` for one that waits for room."""
    return WarmEngineRegistry().states()


def end_all() -> None:
    """End those that no job uses."""
    registry = WarmEngineRegistry()
    for name in registry.states():
        registry.actor(name).end.remote()
