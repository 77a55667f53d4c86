# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_raybatch.job.engine import vllm_compat_models
from airflow_provider_raybatch.job.engine.images import ImageProcessors, at_once


class Renderer:
    """Copied as vLLM's, unless its model's classes don't allow that."""

    def __init__(self, can_be_copied: bool = True) -> None:
        self.can_be_copied = can_be_copied
        self.in_use = threading.Lock()


@pytest.fixture(autouse=True)
def _copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(renderer: Renderer) -> Renderer:
        if not renderer.can_be_copied:
            raise TypeError("cannot pickle")
        return Renderer()

    monkeypatch.setattr(vllm_compat_models, "with_own_processor", copied)


def used(processors: ImageProcessors, threads: int) -> set[Any]:
    """The renderers that so many threads get, which all want one at once; no two threads have the same."""
    begin = threading.Barrier(threads)

    def use() -> list[Renderer]:
        seen = []
        begin.wait(30)
        for _ in range(20):
            with processors.one() as renderer:
                assert renderer.in_use.acquire(blocking=False)
                time.sleep(0.001)
                seen.append(renderer)
                renderer.in_use.release()
        return seen

    with ThreadPoolExecutor(threads) as pool:
        return {one for made in [pool.submit(use) for _ in range(threads)] for one in made.result()}


def test_one_request_at_a_time_needs_no_copy() -> None:
    renderer = Renderer()
    assert used(ImageProcessors(renderer), 1) == {renderer}


@pytest.mark.parametrize("threads", [2, 8])
def test_many_threads_share_two(threads: int) -> None:
    renderer = Renderer()
    processors = ImageProcessors(renderer, most=2)
    with processors.one() as first, processors.one() as second:
        assert first is renderer is not second
    assert used(processors, threads) == {first, second}


def test_eight_threads_share_four() -> None:
    assert len(used(ImageProcessors(Renderer(), most=4), 8)) == 4


@pytest.mark.parametrize(("cores", "requests"), [(1, 2), (2, 2), (4, 2), (6, 3), (8, 4), (96, 4)])
def test_half_of_the_cores_process_images(cores: int, requests: int) -> None:
    assert at_once(cores) == requests


@pytest.mark.parametrize("threads", [2, 8])
def test_a_model_that_can_not_be_copied_has_one(threads: int) -> None:
    renderer = Renderer(can_be_copied=False)
    assert used(ImageProcessors(renderer, most=4), threads) == {renderer}


def test_a_request_that_fails_gives_its_renderer_back() -> None:
    processors = ImageProcessors(Renderer(can_be_copied=False))
    for _ in range(3):
        with pytest.raises(ValueError, match="no pixels"), processors.one():
            raise ValueError("no pixels")
