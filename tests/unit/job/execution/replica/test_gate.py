# SPDX-License-Identifier: Apache-2.0
"""Together or alone, and never both."""

from __future__ import annotations

import asyncio
import random

import pytest

from airflow_provider_raybatch.job.execution.replica.gate import Gate


@pytest.mark.parametrize("seed", range(20))
async def test_groups_never_overlap(seed: int) -> None:
    gate, dice = Gate(), random.Random(seed)
    inside: list[object] = []
    most = 0

    async def visit(name: object) -> None:
        nonlocal most
        await asyncio.sleep(dice.random() / 100)
        async with gate.group(name):
            inside.append(name)
            most = max(most, len(inside))
            assert len(set(inside)) == 1
            await asyncio.sleep(dice.random() / 100)
            inside.remove(name)

    await asyncio.gather(*(visit(dice.choice([None, None, "a", "b", object()])) for _ in range(40)))
    assert most > 1


async def test_normal_users_yield_to_groups() -> None:
    gate, order = Gate(), list[str]()

    async def visit(name: str | None, label: str) -> None:
        async with gate.group(name):
            order.append(label)
            await asyncio.sleep(0.01)

    visits = [visit(None, "first"), visit("a", "group"), visit(None, "later"), visit("a", "group, too")]
    await asyncio.gather(*visits)
    assert order == ["first", "group", "group, too", "later"]


async def test_a_cancelled_wait_blocks_no_one_behind_it() -> None:
    gate, entered = Gate(), list[str | None]()

    async def visit(name: str | None) -> None:
        async with gate.group(name):
            entered.append(name)

    async with gate.group(None):
        waiting = asyncio.ensure_future(visit("a"))
        await asyncio.sleep(0.01)
        behind = asyncio.ensure_future(visit(None))
        await asyncio.sleep(0.01)
        assert entered == []
        waiting.cancel()
        await asyncio.wait([behind], timeout=10)
        assert entered == [None]
