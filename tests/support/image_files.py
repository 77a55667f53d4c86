# SPDX-License-Identifier: Apache-2.0
"""Files of images, and what a test lets rows read."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from airflow_provider_raybatch.job.media.allowed import ImageAccess


def access(**fields: Any) -> ImageAccess:
    """Return what allows nothing but small and quick images, apart from the fields."""
    return ImageAccess(**{
        "roots": (),
        "hosts": frozenset(),
        "most_bytes": 100_000,
        "most_pixels": 10_000,
        "timeout": 20.0,
        **fields,
    })


def image_file(colour: Any = "red", size: tuple[int, int] = (8, 6), kind: str = "PNG") -> bytes:
    """Return the bytes of an image of one colour."""
    from PIL import Image

    return saved(Image.new("RGB", size, colour), kind)


def saved(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    """Return the bytes of an image of Pillow's."""
    into = io.BytesIO()
    image.save(into, kind, **options)
    return into.getvalue()


def bomb(width: int, height: int) -> bytes:
    """Return a few bytes of PNG whose header promises many pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
