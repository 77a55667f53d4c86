# SPDX-License-Identifier: Apache-2.0
"""How many bytes of an image are read, and for how long, wherever it lies."""

from __future__ import annotations

import time
from collections.abc import Iterable

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.media.allowed import ImageAccess
from airflow_provider_raybatch.job.row import ImageError


def check_size(size: int, name: str, access: ImageAccess) -> None:
    """:raises ImageError: `size` bytes are too many; `name` begins its sentence."""
    if size > access.most_bytes:
        raise ImageError(
            f"{name} has more than the {count_of(access.most_bytes, 'byte')} of max_image_bytes; make it "
            "smaller, or raise max_image_bytes"
        )


def joined(blocks: Iterable[bytes], name: str, access: ImageAccess, deadline: float) -> bytes:
    """The content of an image, taken block by block.

    :param name: begins the sentences of errors.
    :param deadline: by `time.monotonic`.
    :raises ImageError: it is too large, or not complete at the deadline.
    """
    content = bytearray()
    for block in blocks:
        content += block
        check_size(len(content), name, access)
        if time.monotonic() > deadline:
            raise too_slow(name, access)
    return bytes(content)


def too_slow(name: str, access: ImageAccess) -> ImageError:
    """The error of an image that is not complete in time."""
    return ImageError(
        f"{name} did not arrive within the {access.timeout:g} s of image_timeout; check where it lies, or "
        "raise image_timeout"
    )
