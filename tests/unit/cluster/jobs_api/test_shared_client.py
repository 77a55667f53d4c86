# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.cluster.jobs_api.sharing import shared_client
from airflow_provider_raybatch.contract.failures import SpecError

ADDRESS = ClusterAddress("http://h", token="one", headers={"X-A": "1"}, cookies={"sid": "1"})


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"token": "two"},
        {"token": None},
        {"headers": {"X-A": "2"}},
        {"cookies": {}},
        {"verify": False},
        {"url": "http://h:1"},
        {"request_timeout": 1.0},
    ],
)
async def test_only_equal_addresses_share_a_client(other):
    async with shared_client(ADDRESS) as first, shared_client(replace(ADDRESS, **other)) as second:
        assert (first is second) is (other == {})


async def test_stays_open_until_the_last_one_leaves(ray):
    address = ClusterAddress(ray.url)
    leave = asyncio.Event()

    async def stay():
        async with shared_client(address) as client:
            await leave.wait()
            return await client.version()

    staying = asyncio.create_task(stay())
    async with shared_client(address) as client:
        await client.version()
    leave.set()
    assert (await staying).session_name == ray.session_name
    with pytest.raises(RuntimeError, match="closed"):
        await client.version()
    async with shared_client(address) as another:
        assert another is not client
        await another.version()


async def test_a_cancelled_user_closes_what_it_opened(ray):
    entered = asyncio.Event()
    kept = []

    async def stay():
        async with shared_client(ClusterAddress(ray.url)) as client:
            kept.append(client)
            entered.set()
            await asyncio.sleep(60)

    staying = asyncio.create_task(stay())
    await entered.wait()
    staying.cancel()
    await asyncio.wait([staying])
    with pytest.raises(RuntimeError, match="closed"):
        await kept[0].version()


async def test_loops_share_nothing(ray):
    address = ClusterAddress(ray.url)

    async def ask():
        async with shared_client(address) as client:
            await client.version()
            return client

    async with shared_client(address) as here:
        assert await asyncio.to_thread(lambda: run_blocking(ask())) is not here


async def test_what_cant_be_opened_fails_for_each_user(tmp_path):
    address = ClusterAddress("https://h", verify=str(tmp_path / "missing.pem"))

    async def use():
        async with shared_client(address):
            pass

    results = await asyncio.gather(use(), use(), return_exceptions=True)
    assert [type(result) for result in results] == [SpecError, SpecError]
