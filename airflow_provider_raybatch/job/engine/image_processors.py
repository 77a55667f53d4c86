# SPDX-License-Identifier: Apache-2.0
"""A model's own processor of images, several times, for as many requests at once.

It resizes pictures, cuts them into tiles and normalises them. vLLM has one, for one request at a time, and
that one can take longer than the GPU. SGLang makes two by default (sgl-project/sglang#31438); in a server of
vLLM's, two gave 20 % more and six 70 % less, for the interpreter's lock (vllm-project/vllm#58266). Here the
front end has less to do besides: on 16 cores, a job with two was 1.7 times as fast as ``LLM.chat`` with one,
with four 2.3 times, and with six no faster (`benchmarks/results/images_gpu.md`).
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_raybatch.job.engine import vllm_compat_media

_log = logging.getLogger(__name__)

_FEWEST, _MOST = 2, 4


def at_once(cores: int) -> int:
    """How many requests with images are processed at once, of a node with so many cores.

    Half of the cores at most, since pictures are decoded beside it.
    """
    return max(_FEWEST, min(_MOST, cores // 2))


AT_ONCE = at_once(os.cpu_count() or 1)
"""On this node. Two replicas of one node share its cores, which such nodes have many of."""


class ImageProcessors:
    """VLLM's renderer, and copies with a processor of their own, each made when one more is wanted.

    :param renderer: of an engine.
    :param most: how many there are in all.
    """

    def __init__(self, renderer: Any, most: int = AT_ONCE) -> None:
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._free.put(renderer)
        self._renderer = renderer
        self._making = threading.Lock()
        self._left = most - 1

    @contextmanager
    def one(self) -> Iterator[Any]:
        """A renderer whose processor no other thread uses; waits until there is one."""
        renderer = self._found()
        try:
            yield renderer
        finally:
            self._free.put(renderer)

    def _found(self) -> Any:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return self._copied() or self._free.get()

    def _copied(self) -> Any:
        """Another renderer; ``None`` if there are enough, or the model's can't be copied."""
        with self._making:
            if not self._left:
                return None
            self._left -= 1
            try:
                return vllm_compat_media.with_own_processor(self._renderer)
            except Exception as error:  # the model's classes may do anything; one processor is enough
                self._left = 0
                _log.warning(
                    "The model's images are processed for one request at a time, since its processor can't "
                    "be copied (%s: %s).",
                    type(error).__name__,
                    error,
                )
                return None
