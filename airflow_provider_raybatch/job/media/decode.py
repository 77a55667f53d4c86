# SPDX-License-Identifier: Apache-2.0
"""From an image's bytes to its pixels, as vLLM makes them of the same bytes."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.job.row import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Those whose decoders read nothing but their input: Pillow's for EPS starts Ghostscript, for example."""
_NAMED = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
_OTHERS = ((b"<", "HTML, XML or SVG"), (b"%PDF-", "PDF"), (b"{", "JSON"))
_WHITE = (255, 255, 255)
_WIDE = ("I", "F")
"""Begin Pillow's modes of 16 and 32 bits a channel: ``convert("RGB")`` clips their values."""


def decode(content: bytes, most_pixels: int) -> npt.NDArray[np.uint8]:
    """The pixels of an image: height x width x 3, RGB. Of an animation those of its first frame.

    :param most_pixels: checked by the header, before memory is taken for them. Pillow itself refuses more
        than about 179 million.
    :raises ImageError: it is not an image of :data:`FORMATS`, damaged, cut off or too large, or has more than
        8 bits a channel in grey.
    :raises PreflightError: the node has no Pillow.
    """
    pillow = import_pillow()
    try:
        image = pillow.open(io.BytesIO(content), formats=FORMATS)
    except pillow.UnidentifiedImageError as error:
        raise ImageError(f"{_what(content)}; write it as {_NAMED}") from error
    except pillow.DecompressionBombError as error:
        raise _too_many(min(most_pixels, 2 * pillow.MAX_IMAGE_PIXELS)) from error
    except Exception as error:  # of a decoder, by a damaged header
        raise _damaged(error) from error
    with image:
        width, height = image.size
        if width * height > most_pixels:
            raise _too_many(most_pixels)
        if image.mode.startswith(_WIDE):
            raise ImageError(
                f"the image has the mode {image.mode!r}, whose values do not fit 8 bits a channel; scale "
                "them to 0 to 255, and write it as 8-bit grey or RGB"
            )
        try:
            return np.asarray(_rgb(image))
        except Exception as error:  # decoders raise whatever a damaged image leads to
            raise _damaged(error) from error


def import_pillow() -> Any:
    """The module that opens images.

    :raises PreflightError: the node has no Pillow.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise PreflightError(
            f"images: Pillow can't be imported on this node ({error}); install it in the cluster's image, or "
            "by runtime_env={'pip': ['pillow']}."
        ) from error
    return Image


def _rgb(image: PilImage) -> PilImage:
    """Turned as its EXIF says, and what is transparent on white."""
    from PIL import Image, ImageOps

    with contextlib.suppress(Exception):  # damaged EXIF is no reason to refuse the pixels
        image = ImageOps.exif_transpose(image)
    image.load()
    if image.mode == "RGB":
        return image
    if image.mode not in {"RGBA", "LA", "PA"} and "transparency" not in image.info:
        return image.convert("RGB")
    image = image if image.mode == "RGBA" else image.convert("RGBA")
    opaque = Image.new("RGB", image.size, _WHITE)
    opaque.paste(image, mask=image.getchannel("A"))
    return opaque


def _too_many(most: int) -> ImageError:
    return ImageError(f"the image has more than {most:,} pixels; make it smaller, or raise max_image_pixels")


def _damaged(error: Exception) -> ImageError:
    return ImageError(f"the image is damaged or cut off ({plain_reason(error)}); write it again")


def _what(content: bytes) -> str:
    if not content:
        return "the image has no bytes"
    start = content[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    found = next((name for sign, name in _OTHERS if start.startswith(sign)), "in a format that is not read")
    return f"the image is {found}"
