# SPDX-License-Identifier: Apache-2.0
"""The images of a row: those that a column's value stands for, and those of content parts of messages."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.text import cut_to, shown_uri
from airflow_provider_raybatch.job.media.load import content_version
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, ImageError

DATA = "data:"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_READ = ("s3", "https", "file")
_LONGEST_SHOWN = 100
WHAT = "a content part of type 'image_url'"
_KINDS = frozenset({"image", "image_url"})


def images_of(value: Any, what: str) -> list[Image]:
    """The images of a column's value; none for null, an empty text and an empty list.

    A struct is what Hugging Face's datasets write: ``bytes``, or the `path` where these are null.

    :param what: begins the sentences of errors, such as ``column 'photo'``.
    :raises ImageError: the value is neither content nor a reference.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):  # as a text it is refused below
            value = json.loads(value)
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
    if scheme[1] not in _READ if scheme is not None else not text.startswith("/"):
        raise ImageError(
            f"{what} has the text {_shown(text)}, which is neither an absolute path nor a URI of s3://, "
            "file:// or https://; give bytes, such a reference, or Base64 as data:image/png;base64,..."
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
            f"{what} has a data: URI that begins with {shown(cut_to(DATA + head, _LONGEST_SHOWN))}; write an "
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
    raise _no_image(value, what)


def _no_image(value: Any, what: str) -> ImageError:
    return ImageError(
        f"{what} has {shown(value)}, which is not an image; give bytes, a struct with bytes, or a reference"
    )


def _of_struct(value: dict[str, Any], what: str) -> Image | None:
    content, path = value.get("bytes"), value.get("path")
    if isinstance(content, (bytes, bytearray, memoryview)):
        return _with_content(bytes(content), what)
    if content is not None or not isinstance(path, (str, type(None))):
        raise _no_image(value, what)
    if not path:
        return None
    return image_at(path, what)


def _with_content(content: bytes, what: str) -> Image:
    if not content:
        raise ImageError(f"{what} has an image without bytes; write null where there is none")
    return Image(content=content, version=content_version(content))


def _shown(text: str) -> str:
    return shown(cut_to(shown_uri(text), _LONGEST_SHOWN))


def taken(messages: Sequence[Any]) -> tuple[list[Any], list[Image | None]]:
    """The chat with an :data:`IMAGE_PART` for each image, and the images in order.

    :param messages: with parts in OpenAI's form, ``{"type": "image_url", "image_url": {"url": ...}}``, or
        with the URL itself as vLLM takes it; or with ``{"type": "image"}``. They stay as they are.
    :returns: ``None`` in place of an image of the last form, which another column has.
    :raises ImageError: a part is not one of these.
    """
    images: list[Image | None] = []
    return [_taken(message, images) for message in messages], images


def count_in(messages: Sequence[Any]) -> int:
    """How many images a chat has that :func:`taken` has made."""
    contents = (message.get("content") for message in messages)
    return sum(content.count(IMAGE_PART) for content in contents if isinstance(content, list))


def url_of(part: dict[str, Any]) -> str:
    """What a part of type ``image_url`` names; `detail` is a hint that no open model takes.

    :raises ImageError: it names nothing.
    """
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str) or not url:
        raise ImageError(f"{WHAT} has no URL; write it as {{'image_url': {{'url': '...'}}}}")
    return url


def _taken(message: Any, images: list[Image | None]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not any(map(_is_image, content)):
        return message
    parts = []
    for part in content:
        if _is_image(part):
            images.append(_image(part))
            part = dict(IMAGE_PART)
        parts.append(part)
    return {**message, "content": parts}


def _is_image(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in _KINDS


def _image(part: dict[str, Any]) -> Image | None:
    if part["type"] == "image_url":
        return image_at(url_of(part), WHAT)
    if part != IMAGE_PART:
        others = ", ".join(repr(name) for name in part if name != "type")[:100]
        raise ImageError(
            f"a content part of type 'image' has {others}, and it only marks the place of an image of the "
            "columns in images; write an image in the chat as a part of type 'image_url'"
        )
    return None


_CONTENT = ("bytes", "path")
"""Fields of the struct that Hugging Face's datasets write."""


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether a column of images has their content, and not references to it."""
    kind = _one_of(kind)
    if pa.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _is_binary(kind[place].type)
    return _is_binary(kind)


def may_hold_images(kind: pa.DataType) -> bool:
    """Whether a column of this type may be one of images."""
    kind = _one_of(kind)
    if pa.types.is_struct(kind):
        return any(kind.get_field_index(name) >= 0 for name in _CONTENT)
    return _is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.null()


def _one_of(kind: pa.DataType) -> pa.DataType:
    """The type of one value, where `kind` is that of lists of them."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return kind.value_type if is_list else kind


def _is_binary(kind: pa.DataType) -> bool:
    return any((
        pa.types.is_binary(kind),
        pa.types.is_large_binary(kind),
        pa.types.is_fixed_size_binary(kind),
    ))
