# SPDX-License-Identifier: Apache-2.0
"""How messages show URIs: without what lets their reader open the file."""

from __future__ import annotations

import re

_CONTAINER = r"\b(?:abfss?|wasbs?|oci)://[\w.$-]{1,100}@"
"""A container or bucket before its account; a login has a colon."""
_URL = re.compile(
    rf"({_CONTAINER}|(?!file:|s3[an]?:|hf:)[A-Za-z][A-Za-z0-9+.-]+:/*)(?:[^/?#]*@)?([^?#]*)", re.IGNORECASE
)
_IN_TEXT = re.compile(r"(\b(?!file:|s3[an]?:|hf:)[a-z][a-z0-9+.-]{1,30}:/+)(\S*)", re.IGNORECASE)
"""A URL with what stands behind it; each character is looked at a few times, however long the text is."""
_LOGIN = re.compile(rf"({_CONTAINER})|(:/+)[^\s/?#'\"<>]{{1,300}}@", re.IGNORECASE)
_BEHIND = ")]}>'\",.;:"
"""What may stand behind a URL in a sentence."""


def shown_uri(uri: str) -> str:
    """`uri` as a message may show it.

    A URL loses its login, query and fragment: whoever has a presigned URL's signature can open the file.
    """
    found = _URL.match(uri)
    return uri if found is None else found[1] + found[2]


def without_queries(text: str) -> str:
    """A text as it may be shown that may have URLs somewhere; see :func:`shown_uri`."""
    return _IN_TEXT.sub(_without_query, text)


def _without_query(found: re.Match[str]) -> str:
    place, *query = re.split("[?#]", found[2], maxsplit=1)
    place = _LOGIN.sub(r"\1\2", found[1] + place)
    return place + "".join(one[len(one.rstrip(_BEHIND)) :] for one in query)
