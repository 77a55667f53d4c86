# SPDX-License-Identifier: Apache-2.0
"""All images of one row, ready for its model: pixels, as vLLM makes them of the same bytes, and versions.

What tells one image from another:

- A copy of the content in a row, a file and a URL: the digest of the content.
- An object in S3: its ETag and size, which a HEAD tells. So no key of a request needs the content, and a copy
  of the object under another name is the same image.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.job.media.allowed import (
    BucketObject,
    DiskFile,
    ImageAccess,
    Reference,
    check_size,
    shown_image,
)
from airflow_provider_raybatch.job.media.stores import object_version, read_file, read_object, read_url
from airflow_provider_raybatch.job.row import Image, ImageError, Request, RowFailure
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import in_order

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage


FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Those whose decoders read nothing but their input: Pillow's for EPS starts Ghostscript, for example."""
_NAMED = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
_WHITE = (255, 255, 255)
_WIDE = ("I", "F")
"""Begin Pillow's modes of 16 and 32 bits a channel: ``convert("RGB")`` clips their values."""
_AT_ONCE = 16
"""References that are looked up at the same time, and images in memory at most."""


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
        raise ImageError(f"the image is in a format that is not read; write it as {_NAMED}") from error
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


def fetch(image: Image, access: ImageAccess) -> Image:
    """The image with its content and version.

    :raises ImageError: it can't be read, is not allowed or too large.
    :raises StorageError: the store, the disk or the host fails.
    """
    if not image.uri:
        return version_of(image, access)
    place, version = access.located(image.uri), ""
    with _public_errors(place):
        if isinstance(place, BucketObject):
            content, version = read_object(place, access)
        else:
            content = read_file(place, access) if isinstance(place, DiskFile) else read_url(place, access)
    return replace(image, content=content, version=version or content_version(content))


def version_of(image: Image, access: ImageAccess) -> Image:
    """The image with its version; the content of a reference is dropped again.

    :raises ImageError: as :func:`fetch` does.
    :raises StorageError: as :func:`fetch` does.
    """
    if not image.uri:
        check_size(len(image.content), "the image", access)
        return image if image.version else replace(image, version=content_version(image.content))
    place, version = access.located(image.uri), ""
    if isinstance(place, BucketObject):
        with _public_errors(place):
            version = object_version(place, access)
    return replace(image, version=version) if version else replace(fetch(image, access), content=b"")


def content_version(content: bytes) -> str:
    """The version of an image whose content is known."""
    return f"blake2b:{hashlib.blake2b(content, digest_size=16).hexdigest()}"


@contextlib.contextmanager
def _public_errors(place: Reference) -> Iterator[None]:
    """Name the field in errors of a store, and give them a sentence without the reference, the row's own."""
    try:
        yield
    except StorageError as error:
        public = (
            f"images: an image {_where(place)} can't be read; check that the cluster's nodes can read there. "
            "The address and the reason are left out with report_samples=0."
        )
        raise StorageError(f"images: {error}", error.failure_class, public=public) from error


def _where(place: Reference) -> str:
    """Where a reference leads, as far as the job's arguments say it, too."""
    if isinstance(place, BucketObject):
        return f"in s3://{place.bucket}"
    if isinstance(place, DiskFile):
        return f"below {place.roots[0]}"
    return f"on {urlsplit(place.url).hostname}"


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
