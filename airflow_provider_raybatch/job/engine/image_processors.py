# SPDX-License-Identifier: Apache-2.0
"""A model's own processor of images, twice, for two requests at once.

It resizes pictures, cuts them into tiles and normalises them. vLLM has one, for one request at a time, and
that one can take longer than the GPU. Two threads are what others have measured to help: SGLang makes two by
default (sgl-project/sglang#31438), and in a server of vLLM's two gave 20 % more and six 70 % less, for the
interpreter's lock (vllm-project/vllm#58266).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_raybatch.job.engine import vllm_compat_media

_log = logging.getLogger(__name__)

AT_ONCE = 2


class ImageProcessors:
    """VLLM's renderer, and a copy with a processor of its own, which is made when two are wanted at once.

    :param renderer: of an engine.
    """

    def __init__(self, renderer: Any) -> None:
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._free.put(renderer)
        self._renderer = renderer
        self._making = threading.Lock()
        self._left = AT_ONCE - 1

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
                _log.warning(
                    "The model's images are processed for one request at a time, since its processor can't "
                    "be used twice (%s: %s).",
                    type(error).__name__,
                    error,
                )
                return None
