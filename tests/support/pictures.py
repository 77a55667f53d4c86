# SPDX-License-Identifier: Apache-2.0
"""Pictures of one colour, and requests that ask about some."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.row import IMAGE_PART, Image, Request

Pixels: TypeAlias = npt.NDArray[np.uint8]


def picture(width: int = 4, height: int = 3, colour: tuple[int, int, int] = (255, 0, 0)) -> Pixels:
    return np.full((height, width, 3), colour, np.uint8)


def images(count: int) -> tuple[Image, ...]:
    """As many as a request has; an engine gets their pixels by itself."""
    return tuple(Image(content=bytes([number])) for number in range(count))


def asking_about(text: str, count: int = 1, **fields: Any) -> Request:
    """A chat with so many images before its text."""
    parts: list[dict[str, Any]] = [dict(IMAGE_PART) for _ in range(count)]
    content = [*parts, {"type": "text", "text": text}]
    return Request(messages=[{"role": "user", "content": content}], images=images(count), **fields)
