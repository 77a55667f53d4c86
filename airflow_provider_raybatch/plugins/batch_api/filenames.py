# SPDX-License-Identifier: Apache-2.0
"""Names of uploaded files, as clients gave them. They are shown and never part of a path."""

from __future__ import annotations

import unicodedata

LONGEST_NAME = 255
"""Characters of a file's name that are kept."""


def shown_name(given: bytes) -> str:
    """The name without folders and control characters, at most :data:`LONGEST_NAME` long; may be empty.

    :param given: the parameter `filename` of a form's part, without its quotes. Browsers and httpx escape
        quotes and line breaks in it.
    """
    name = given.decode("utf-8", errors="replace")
    for escaped, meant in (("%22", '"'), ("%0D", "\r"), ("%0A", "\n")):
        name = name.replace(escaped, meant)
    name = name.replace("\\", "/").rpartition("/")[2]
    # Also marks that turn the direction of a text, and halves of surrogate pairs.
    name = "".join(one for one in name if not unicodedata.category(one).startswith("C")).strip()
    stem, dot, suffix = name.rpartition(".")
    if len(name) > LONGEST_NAME and dot and len(suffix) < 16:
        return stem[: LONGEST_NAME - len(suffix) - 1] + dot + suffix
    return name[:LONGEST_NAME]
