# SPDX-License-Identifier: Apache-2.0
"""Where data lies: local paths, ``file://``, ``s3://`` and ``https://``, checked and compared as text."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote, urlsplit

SOURCE_SCHEMES = ("file", "s3", "https", "http")
DESTINATION_SCHEMES = ("file", "s3")
WILDCARDS = frozenset("*?[")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_JINJA = re.compile(r"\{\{.*?\}\}", re.DOTALL)


def check_location(uri: str, schemes: tuple[str, ...]) -> None:
    """Refuse what can't be a location.

    :raises ValueError: one sentence, without the field's name.
    """
    if not uri.strip():
        raise ValueError("a path is empty; name a file, a folder or a glob")
    if _JINJA.search(uri):
        raise ValueError(f"{uri!r} still has a Jinja expression; the field was not rendered")
    match = _SCHEME.match(uri)
    if match and match.group(1) not in schemes:
        allowed = ", ".join(f"{scheme}://" for scheme in schemes)
        raise ValueError(f"{uri!r} has the scheme {match.group(1)!r}; use a local path or one of {allowed}")
    if match and match.group(1) == "s3":
        bucket = uri[5:].split("/")[0]
        if not bucket:
            raise ValueError(f"{uri!r} names no bucket; write it as s3://bucket/key")
        if WILDCARDS & set(bucket):
            raise ValueError(f"{uri!r} has a wildcard in its bucket; name one bucket")


def local_path(uri: str) -> str:
    """The path of a local location, with or without ``file://``."""
    return unquote(urlsplit(uri).path) if uri.startswith("file://") else uri


def plain(uri: str) -> str:
    """The one spelling that locations are compared by."""
    if _SCHEME.match(uri) and not uri.startswith("file://"):
        return uri.rstrip("/")
    return posixpath.normpath(local_path(uri))


def reads_into(source: str, folder: str) -> bool:
    """Whether the path `source` of a source takes in files of the later `folder`."""
    source, folder = plain(source), plain(folder)
    if "**" in source.split("/"):
        source = source.partition("/**")[0] or "/"
    elif WILDCARDS & set(source):
        return False
    return folder.startswith(source.rstrip("/") + "/")
