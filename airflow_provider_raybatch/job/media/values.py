# SPDX-License-Identifier: Apache-2.0
"""The images that a value of a row stands for: content, references, or lists of these."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.shown_uri import shown_uri
from airflow_provider_raybatch.contract.text import cut_to
from airflow_provider_raybatch.job.media.fetch import content_version
from airflow_provider_raybatch.job.row import Image, ImageError

DATA = "data:"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_READ = ("s3", "https", "file")
_BASE64 = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "R0lGOD": "gif", "UklGR": "webp"}
"""How the Base64 of an image begins, by its format."""
_LONGEST_SHOWN = 100


def images_of(value: Any, what: str) -> list[Image]:
    """The images of a column's value; none for null, an empty text and an empty list.

    A struct is what Hugging Face's datasets write: ``bytes``, or the `path` where these are null.

    :param what: begins the sentences of errors, such as ``column 'photo'``.
    :raises ImageError: the value is neither content nor a reference.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _list_in(value, what)
    if not isinstance(value, (list, tuple)):
        found = _image_of(value, what)
        return [] if found is None else [found]
    images = []
    for number, one in enumerate(value, 1):
        found = _image_of(one, f"{what}, image {number} of {len(value)},")
        if found is None:
            raise ImageError(f"{what} has a list whose image {number} is empty; remove it from the list")
        images.append(found)
    return images


def image_at(text: str, what: str) -> Image:
    """The image of a ``data:`` URI, or of a reference: an absolute path, or an URI that may be read.

    :raises ImageError: it is neither.
    """
    if text[: len(DATA)].lower() == DATA:
        return image_in(text, what)
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1] not in _READ:
        raise ImageError(
            f"{what} has the reference {_shown(text)}, and images are read from s3://, file:// and https://; "
            "copy it there"
        )
    for begins, kind in _BASE64.items():
        if text.startswith(begins) and len(text) > _LONGEST_SHOWN:
            raise ImageError(
                f"{what} has Base64 without its type; write 'data:image/{kind};base64,' before it, or bytes"
            )
    if scheme is None and not text.startswith("/"):
        raise ImageError(
            f"{what} has the text {_shown(text)}, which is neither an absolute path nor a URI; give bytes, "
            "or a reference such as s3://bucket/key"
        )
    return Image(uri=text)


def image_in(uri: str, what: str) -> Image:
    """The image that a ``data:`` URI has in it.

    :raises ImageError: it is not the Base64 of an image.
    """
    head, comma, data = uri[len(DATA) :].partition(",")
    kind, *parameters = [one.strip().lower() for one in head.split(";")]
    if not comma or "base64" not in parameters or not kind.startswith("image/"):
        raise ImageError(
            f"{what} has a data: URI that begins with {shown(cut_to(_LONGEST_SHOWN, DATA + head))}; write an "
            "image as data:image/png;base64,..."
        )
    try:
        content = base64.b64decode("".join(data.split()), validate=True)
    except ValueError as error:
        raise ImageError(f"{what} has a data: URI that is not Base64 ({error}); write it again") from None
    return _with_content(content, what)


def _image_of(value: Any, what: str) -> Image | None:
    if isinstance(value, dict) and {"bytes", "path"} & value.keys():
        return _of_struct(value, what)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _with_content(bytes(value), what)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return image_at(value, what)
    raise ImageError(
        f"{what} has {shown(value)}, which is not an image; give bytes, a struct with bytes, or a reference"
    )


def _of_struct(value: dict[str, Any], what: str) -> Image | None:
    content, path = value.get("bytes"), value.get("path")
    if isinstance(content, (bytes, bytearray, memoryview)):
        return _with_content(bytes(content), what)
    if content is not None:
        raise ImageError(f"{what} has 'bytes' that are {type(content).__name__}; write them as binary")
    if path is None or path == "":
        return None
    if not isinstance(path, str):
        raise ImageError(f"{what} has the path {shown(path)}, which is not text; write a reference")
    if "/" not in path[:1] and _SCHEME.match(path) is None and not path.startswith(DATA):
        raise ImageError(
            f"{what} has the path {_shown(path)} and no bytes, and a relative path has no place here; write "
            "the bytes into the dataset (Image(decode=False) with embed_external_files), or absolute paths"
        )
    return image_at(path, what)


def _with_content(content: bytes, what: str) -> Image:
    if not content:
        raise ImageError(f"{what} has an image without bytes; write null where there is none")
    return Image(content=content, version=content_version(content))


def _list_in(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ImageError(
            f"{what} has a text that begins as a list and is not JSON; write a JSON list"
        ) from None


def _shown(text: str) -> str:
    return shown(cut_to(_LONGEST_SHOWN, shown_uri(text)))
