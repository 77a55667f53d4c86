# SPDX-License-Identifier: Apache-2.0
"""Images are decoded to the pixels that vLLM makes of the same bytes; no engine starts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from airflow_provider_raybatch.job.media.load import decode
from airflow_provider_raybatch.job.row import ImageError
from tests.support.image_files import saved

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


def files() -> Iterator[tuple[str, bytes]]:
    """Yield images of each kind that people have, by name."""
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (24, 32, 4), np.uint8)
    rgba = Image.fromarray(noise, "RGBA")
    rgb = rgba.convert("RGB")
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        yield kind, saved(rgb, kind)
    for kind in ("PNG", "WEBP", "TIFF"):
        yield f"{kind} RGBA", saved(rgba, kind)
    palette = rgb.quantize(16)
    yield "palette", saved(palette)
    yield "palette with transparency", saved(palette, transparency=3)
    yield "palette GIF with transparency", saved(palette, "GIF", transparency=3)
    yield "palette with alpha", saved(rgba.quantize(16, method=Image.Quantize.FASTOCTREE))
    yield "RGB with a transparent colour", saved(rgb, transparency=tuple(noise[0, 0, :3].tolist()))
    for mode in ("L", "LA", "1"):
        yield mode, saved(rgba.convert(mode))
    yield "grey with a transparent level", saved(rgb.convert("L"), transparency=100)
    for kind in ("JPEG", "TIFF"):
        yield f"CMYK {kind}", saved(rgb.convert("CMYK"), kind)
    yield "progressive JPEG", saved(rgb, "JPEG", progressive=True)
    for turn in range(9):
        exif = Image.Exif()
        exif[0x0112] = turn
        for kind in ("JPEG", "PNG", "WEBP"):
            yield f"{kind} with orientation {turn}", saved(rgb, kind, exif=exif)
    exif = Image.Exif()
    exif[0x0112] = 6
    yield "turned with alpha", saved(rgba, exif=exif)
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        yield f"frames of {kind}", saved(rgba, kind, save_all=True, append_images=[rgba.rotate(90)])


def test_pixels_are_those_of_vllm() -> None:
    from vllm.multimodal.media.image import ImageMediaIO

    different, seen = [], set()
    for name, content in files():
        theirs = np.asarray(ImageMediaIO().load_bytes(content).media)
        seen.add(name)
        if not np.array_equal(decode(content, 1000), theirs):
            different.append(name)
    assert different == []
    assert len(seen) > 50


def test_what_vllm_refuses_is_refused() -> None:
    from vllm.multimodal.media.image import ImageMediaIO

    content = dict(files())["JPEG"]
    for damaged in (content[: len(content) // 2], b"text"):
        with pytest.raises(ValueError, match="Failed to load image"):
            ImageMediaIO().load_bytes(damaged)
        with pytest.raises(ImageError):
            decode(damaged, 1000)
