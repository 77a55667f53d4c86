# SPDX-License-Identifier: Apache-2.0
"""Together or alone, and never both."""

from __future__ import annotations

import asyncio
import random

import pytest

from airflow_provider_raybatch.job.replica.gate import Gate


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_is_alone_is_alone(seed: int) -> None:
    gate, dice = Gate(), random.Random(seed)
    inside: list[bool] = []
    most = 0

    async def visit(alone: bool) -> None:
        nonlocal most
        await asyncio.sleep(dice.random() / 100)
        async with gate.alone() if alone else gate.together():
            inside.append(alone)
            most = max(most, len(inside))
            assert not any(inside) or len(inside) == 1
            await asyncio.sleep(dice.random() / 100)
            inside.remove(alone)

    await asyncio.gather(*(visit(dice.random() < 0.2) for _ in range(40)))
    assert most > 1


async def test_who_is_cancelled_while_he_waits_keeps_nobody_out() -> None:
    gate = Gate()

    async def visit(alone: bool) -> None:
        async with gate.alone() if alone else gate.together():
            pass

    async with gate.together():
        alone = asyncio.ensure_future(visit(True))
        await asyncio.sleep(0.01)
        behind = asyncio.ensure_future(visit(False))
        await asyncio.sleep(0.01)
        alone.cancel()
        await asyncio.wait_for(behind, 1)
