# SPDX-License-Identifier: Apache-2.0
"""Together or alone, and never both."""

from __future__ import annotations

import asyncio
import random

import pytest

from airflow_provider_raybatch.job.execution.replica.gate import Gate


@pytest.mark.parametrize("seed", range(20))
async def test_nobody_meets_a_stranger(seed: int) -> None:
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


async def test_ordinary_users_let_the_others_go_first() -> None:
    gate, order = Gate(), list[str]()

    async def visit(name: str | None, who: str) -> None:
        async with gate.group(name):
            order.append(who)
            await asyncio.sleep(0.01)

    visits = [visit(None, "first"), visit("a", "suspect"), visit(None, "later"), visit("a", "his friend")]
    await asyncio.gather(*visits)
    assert order == ["first", "suspect", "his friend", "later"]


async def test_who_is_cancelled_while_he_waits_keeps_nobody_out() -> None:
    gate = Gate()

    async def visit(name: str | None) -> None:
        async with gate.group(name):
            pass

    async with gate.group(None):
        waiting = asyncio.ensure_future(visit("a"))
        await asyncio.sleep(0.01)
        behind = asyncio.ensure_future(visit(None))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait_for(behind, 1)
