# SPDX-License-Identifier: Apache-2.0
"""How long a task waits for a Kubernetes that is silent."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_raybatch.cluster.jobs_api.access import Access
from airflow_provider_raybatch.kubernetes.api.errors import KubernetesUnreachableError
from airflow_provider_raybatch.kubernetes.api.server import ApiServer
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.connection import Kubernetes


class NoLogin:
    identity = "none"

    async def header(self) -> str | None:
        return None

    def refused(self, header: str | None) -> None:
        return None


@pytest.mark.timeout(25)  # one try of a client that is not hurried takes 30 s
def test_hurried_client_gives_a_silent_server_up() -> None:
    async def ask() -> int:
        asked = 0

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            asked += 1
            await reader.read()
            writer.close()

        async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            silent = ApiServer(f"http://{host}:{port}", Access(NoLogin()), "a test")
            kubernetes = Kubernetes(KubeRayCluster(name="c"), silent)
            async with kubernetes.api(hurried=True) as api:
                with pytest.raises(KubernetesUnreachableError):
                    await api.get("RayJob", "raybatch-0")
        return asked

    assert asyncio.run(ask()) == 2
