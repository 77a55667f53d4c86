# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a task to the place where its jobs are."""

from __future__ import annotations

from airflow_provider_raybatch.hooks.ray import RayHook
from airflow_provider_raybatch.places.connected import ConnectedPlace
from airflow_provider_raybatch.places.shared import SharedPlace


def place_of(ray_conn_id: str) -> SharedPlace:
    """Where the jobs of a task are.

    :raises RayBatchException: the connection can't be used, or read.
    """
    return ConnectedPlace(RayHook(ray_conn_id).read())


async def aplace_of(ray_conn_id: str) -> SharedPlace:
    """As :func:`place_of`, without blocking the event loop."""
    return ConnectedPlace(await RayHook(ray_conn_id).aread())
