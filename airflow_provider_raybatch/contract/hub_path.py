# SPDX-License-Identifier: Apache-2.0
"""Paths of datasets on the Hugging Face hub: ``hf://datasets/owner/name@revision/path``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

HUB = "hf://"
_PARTS = re.compile(
    r"hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/(?:convert|pr)/[^/@]+|[^/@]+))?(?:/(.*))?", re.DOTALL
)
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class HubPath:
    """A path in a dataset's repository.

    :param dataset: ``owner/name``.
    :param written: the repository and revision, as the user wrote them.
    :param revision: a branch, a tag, a commit, or a reference such as ``refs/convert/parquet``.
    """

    dataset: str
    written: str
    revision: str
    path: str


def split_hub(uri: str) -> HubPath | None:
    """The parts of an ``hf://`` URI; ``None`` for any other location."""
    found = _PARTS.fullmatch(uri) if uri.startswith(HUB) else None
    if found is None:
        return None
    dataset, revision, path = found.groups()
    written = uri[: found.start(3) - 1] if path is not None else uri
    return HubPath(dataset, written, unquote(revision or "main"), (path or "").rstrip("/"))


def check_hub(uri: str) -> None:
    """Refuse what names no path of a dataset.

    :raises ValueError: one sentence.
    """
    found = split_hub(uri)
    if found is None:
        raise ValueError(
            f"{uri!r} names no dataset of the Hugging Face hub; write it as "
            "hf://datasets/owner/name@revision/path"
        )
    if _WILDCARDS & set(found.revision):
        raise ValueError(f"{uri!r} has a wildcard in its revision; name one branch, tag or commit")
    odd = next((name for name in found.path.split("/") if name in {"", ".", ".."}), None)
    if odd is not None and found.path:
        shown = "an empty name" if odd == "" else f"the name {odd!r}"
        raise ValueError(
            f"{uri!r} has {shown} between its slashes, which the hub does not resolve; remove it"
        )
