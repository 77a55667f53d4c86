# SPDX-License-Identifier: Apache-2.0
"""What Ray Data's page shows of a Dataset, asked where the dashboard asks."""

from __future__ import annotations

from typing import Any

import ray


def page_of(name: str) -> dict[str, Any]:
    """Return the newest Dataset whose name begins with this, as `name` with what is shown of it."""
    from ray.data._internal.stats import get_or_create_stats_actor

    found = ray.get(get_or_create_stats_actor().get_datasets.remote())
    named = [{"name": key, **shown} for key, shown in found.items() if key.startswith(name)]
    return max(named, key=lambda one: float(one["start_time"]))
