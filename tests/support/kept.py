# SPDX-License-Identifier: Apache-2.0
"""The kept engines of the Ray that this process is connected to."""

from __future__ import annotations

from airflow_provider_raybatch.job.warm_engines.registry import KeptState, WarmEngineRegistry


def kept() -> dict[str, KeptState | None]:
    """Return what each says of itself, by name; ``None`` for one that waits for room."""
    return WarmEngineRegistry().look()


def end_all() -> None:
    """End those that no job uses."""
    roll = WarmEngineRegistry()
    for name in roll.look():
        roll.actor(name).end.remote()
