# SPDX-License-Identifier: Apache-2.0
"""What an echo sees in images: how large they are, and their mean colour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def seen_in(pixels: Sequence[npt.NDArray[np.uint8]]) -> tuple[str, ...]:
    """A word for each image, such as ``[640x480 #20a0ff]``; a blank in it does not part it.

    :param pixels: of each image: height x width x 3, RGB.
    """
    return tuple(map(_word, pixels))


def _word(pixels: npt.NDArray[np.uint8]) -> str:
    height, width, _ = pixels.shape
    red, green, blue = (round(float(mean)) for mean in pixels.mean(axis=(0, 1)))
    return f"[{width}x{height} #{red:02x}{green:02x}{blue:02x}]"
