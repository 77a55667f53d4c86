# SPDX-License-Identifier: Apache-2.0
"""The versions of the images of many requests, before their keys are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_raybatch.job.media.allowed import ImageAccess
from airflow_provider_raybatch.job.media.fetch import version_of
from airflow_provider_raybatch.job.media.load import media_failure
from airflow_provider_raybatch.job.row import Image, ImageError, Request, RowFailure
from airflow_provider_raybatch.storage.in_order import in_order

_AT_ONCE = 16
"""Images that are looked at at the same time, and at most in memory."""


def versioned(made: Sequence[Request | RowFailure], access: ImageAccess) -> list[Request | RowFailure]:
    """The requests with the versions of their images, in order; each reference is looked at once.

    :returns: a failure of the step ``media`` in place of a request whose image has no version.
    :raises StorageError: a store, a disk or a host fails.
    """
    requests = [one for one in made if isinstance(one, Request)]
    # By content or reference: a row may hold a logo that thousands of others hold, too.
    wanted = dict.fromkeys(image for request in requests for image in request.images)

    def look_up(image: Image) -> str | ImageError:
        try:
            return version_of(image, access).version
        except ImageError as error:
            return error

    found = dict(zip(wanted, in_order(look_up, wanted, _AT_ONCE), strict=True))
    return [_with_versions(one, found) if isinstance(one, Request) and one.images else one for one in made]


def _with_versions(request: Request, found: dict[Image, str | ImageError]) -> Request | RowFailure:
    images = []
    for number, image in enumerate(request.images, 1):
        version = found[image]
        if isinstance(version, ImageError):
            return media_failure(version, image, number, len(request.images))
        images.append(replace(image, version=version))
    return replace(request, images=tuple(images))
