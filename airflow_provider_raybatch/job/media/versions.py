# SPDX-License-Identifier: Apache-2.0
"""The versions of the images of many requests, before their keys are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_raybatch.job.media.allowed import ImageAccess
from airflow_provider_raybatch.job.media.fetch import version_of
from airflow_provider_raybatch.job.media.load import media_failure
from airflow_provider_raybatch.job.row import Image, ImageError, Request, RowFailure
from airflow_provider_raybatch.storage.in_order import in_order

_AT_ONCE = 16
"""References that are looked up at the same time, and images in memory at most."""


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
