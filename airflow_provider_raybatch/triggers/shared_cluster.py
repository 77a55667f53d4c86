# SPDX-License-Identifier: Apache-2.0
"""`SharedClusterTrigger`: waits for a cluster that tasks share, while the task that makes it is deferred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from airflow_provider_raybatch.triggers.killable import GOES_ON
from airflow_provider_raybatch.triggers.ray_cluster import RayClusterTrigger

_TAKEN = "The task has gone on without this trigger, so %s goes on."


class SharedClusterTrigger(RayClusterTrigger):
    """As :class:`RayClusterTrigger`; it never deletes a cluster that other tasks may use already."""

    goes_on: ClassVar[Mapping[str, str]] = GOES_ON | dict.fromkeys(
        ("scheduled", "queued", "running", "success"), _TAKEN
    )
