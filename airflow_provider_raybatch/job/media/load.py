# SPDX-License-Identifier: Apache-2.0
"""All images of one row, ready for its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.media.allowed import ImageAccess, shown_image
from airflow_provider_raybatch.job.media.decode import decode
from airflow_provider_raybatch.job.media.fetch import fetch
from airflow_provider_raybatch.job.row import Image, ImageError, RowFailure


@dataclass(frozen=True)
class Loaded:
    """The images of a row.

    :param pixels: of each image, in order: height x width x 3, RGB.
    :param images: with their versions; references are without content.
    """

    pixels: list[npt.NDArray[np.uint8]]
    images: tuple[Image, ...]


def load(images: Sequence[Image], access: ImageAccess) -> Loaded | RowFailure:
    """Fetch and decode the images of a row, one after the other.

    :returns: a failure of the step ``media`` if one of them can't be read or is not allowed.
    :raises StorageError: a store, a disk or a host fails.
    :raises PreflightError: the node has no Pillow.
    """
    pixels, versioned = [], []
    for number, image in enumerate(images, 1):
        try:
            fetched = fetch(image, access)
        except ImageError as error:
            failure = media_failure(error, image, number, len(images))
            return replace(failure, is_of_reference=bool(image.uri))
        try:
            pixels.append(_decoded(fetched, access))
        except ImageError as error:
            return media_failure(error, image, number, len(images))
        versioned.append(replace(fetched, content=b"") if image.uri else fetched)
    return Loaded(pixels, tuple(versioned))


def media_failure(error: ImageError, image: Image, number: int, count: int) -> RowFailure:
    """The failure of a row by one of its images, the `number`-th of `count`."""
    if not image.uri and count > 1:
        error = ImageError(f"image {number} of {count}: {error}")
    return RowFailure.of("media", error)


def _decoded(image: Image, access: ImageAccess) -> npt.NDArray[np.uint8]:
    try:
        return decode(image.content, access.most_pixels)
    except ImageError as error:
        raise ImageError(f"{shown_image(image.uri)}: {error}" if image.uri else str(error)) from error
