# SPDX-License-Identifier: Apache-2.0
"""All images of one row, ready for its model, and the versions of those of many requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.media.allowed import ImageAccess, shown_image
from airflow_provider_raybatch.job.media.decode import decode
from airflow_provider_raybatch.job.media.fetch import fetch, version_of
from airflow_provider_raybatch.job.row import Image, ImageError, Request, RowFailure
from airflow_provider_raybatch.storage.in_order import in_order

_AT_ONCE = 16
"""References that are looked up at the same time, and images in memory at most."""


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


def versioned(made: Sequence[Request | RowFailure], access: ImageAccess) -> list[Request | RowFailure]:
    """The requests with the versions of their images, in order; each reference is looked up once.

    :returns: a failure of the step ``media`` in place of a request whose image has no version.
    :raises StorageError: a store, a disk or a host fails.
    """
    requests = [one for one in made if isinstance(one, Request) and one.images]
    wanted = dict.fromkeys(image.uri for one in requests for image in one.images if image.uri)
    found: dict[str, Image | ImageError] = {}
    if wanted:  # else no threads are made
        looked_up = in_order(lambda uri: _looked_up(Image(uri=uri), access), wanted, _AT_ONCE)
        found.update(zip(wanted, looked_up, strict=True))
    return [_with_versions(one, found, access) for one in made]


def _looked_up(image: Image, access: ImageAccess) -> Image | ImageError:
    try:
        return version_of(image, access)
    except ImageError as error:
        return error


def _with_versions(
    made: Request | RowFailure, found: Mapping[str, Image | ImageError], access: ImageAccess
) -> Request | RowFailure:
    if isinstance(made, RowFailure) or not made.images:
        return made
    images = []
    for number, image in enumerate(made.images, 1):
        known = found[image.uri] if image.uri else _looked_up(image, access)
        if isinstance(known, ImageError):
            return media_failure(known, image, number, len(made.images))
        images.append(known)
    return replace(made, images=tuple(images))
