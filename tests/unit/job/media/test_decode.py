# SPDX-License-Identifier: Apache-2.0
"""Pixels of images, and files that are none.

`tests/vllm/test_decoded_images.py` compares pixels with those of vLLM.
"""

from __future__ import annotations

import io
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.media.load import FORMATS, decode
from airflow_provider_raybatch.job.row import ImageError
from tests.support.approved import AssertSentences
from tests.support.image_files import bomb, image_file, saved

pillow = pytest.importorskip("PIL.Image")
MOST = 10_000


def refused(content: bytes, most_pixels: int = MOST) -> str:
    with pytest.raises(ImageError) as caught:
        decode(content, most_pixels)
    return str(caught.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_is_decoded_to_rgb(kind: str) -> None:
    pixels = decode(image_file((0, 0, 255), (8, 6), kind), MOST)
    assert (pixels.shape, pixels.dtype) == ((6, 8, 3), np.uint8)
    assert np.abs(pixels.astype(int) - (0, 0, 255)).max() <= 3  # JPEG and WebP lose some


@pytest.mark.parametrize("mode", pillow.MODES)
def test_a_mode_of_more_than_8_bits_is_refused(mode: str) -> None:
    """Pillow's conversion to RGB would clip its values to white, and make floats up to 1 black."""
    for kind in FORMATS:
        try:
            content = saved(pillow.new(mode, (2, 1)), kind)
        except (OSError, ValueError):  # the format has no such mode
            continue
        found = pillow.open(io.BytesIO(content)).mode
        if found.startswith(("I", "F")):
            assert refused(content) == (
                f"the image has the mode {found!r}, whose values do not fit 8 bits a channel; scale them "
                "to 0 to 255, and write it as 8-bit grey or RGB"
            )
        else:
            assert decode(content, MOST).shape == (1, 2, 3)


def test_an_animation_is_its_first_frame() -> None:
    frames = [pillow.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        content = saved(frames[0], kind, save_all=True, append_images=frames[1:])
        assert decode(content, MOST)[0, 0, 0] > 250


def test_an_image_is_turned_as_its_exif_says() -> None:
    exif = pillow.Exif()
    exif[0x0112] = 6  # a quarter turn
    image = pillow.new("RGB", (8, 6))
    assert decode(saved(image, "JPEG", exif=exif), MOST).shape == (8, 6, 3)
    assert decode(saved(image, "JPEG", exif=b"Exif\0\0damaged"), MOST).shape == (6, 8, 3)


def test_what_is_transparent_is_white() -> None:
    assert decode(saved(pillow.new("RGBA", (2, 2), (255, 0, 0, 0))), MOST).tolist() == [[[255] * 3] * 2] * 2


@pytest.mark.parametrize(
    ("width", "height"),
    [(101, 100), (1, 10_001), (30_000, 30_000), (100_000, 100_000), (2**31 - 1, 2**31 - 1)],
)
def test_a_bomb_is_refused_by_its_header(width: int, height: int) -> None:
    text = refused(bomb(width, height))
    assert text == "the image has more than 10,000 pixels; make it smaller, or raise max_image_pixels"


def test_an_image_may_have_max_image_pixels() -> None:
    assert decode(image_file(size=(100, 100)), MOST).shape == (100, 100, 3)


def test_pillows_own_limit_holds_above_that() -> None:
    assert "has more than 178,956,970 pixels" in refused(bomb(30_000, 30_000), 10**12)


def test_a_limit_above_pillows_warning_is_taken() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "damaged" in refused(bomb(10_000, 10_000), 10**8)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_cut_off_is_refused(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8)
    content = saved(pillow.fromarray(noise), kind)
    for end in (len(content) // 2, len(content) * 4 // 5):
        assert "damaged or cut off" in refused(content[:end])


def test_what_is_not_an_image_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(refused)


@given(st.sampled_from(FORMATS), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=8))
@settings(max_examples=120)
def test_damage_leads_to_pixels_or_a_refusal(kind: str, changes: list[tuple[int, int]]) -> None:
    content = bytearray(image_file((9, 200, 31), (16, 12), kind))
    for at, value in changes:
        content[at % len(content)] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            count = decode(bytes(content), MOST).size // 3
        except ImageError:
            count = 0
    assert count <= MOST


def test_a_node_without_pillow_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    content = image_file()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PreflightError, match=r"images: Pillow can't be imported on this node .*install it"):
        decode(content, MOST)
