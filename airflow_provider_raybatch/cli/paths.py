# SPDX-License-Identifier: Apache-2.0
"""Locations on the command line, which may be relative to the folder of the shell; a DAG's may not."""

from __future__ import annotations

import os


def absolute(location: str) -> str:
    """`location`, a local one as an absolute path. Symbolic links in it stay."""
    if "://" in location or not location:
        return location
    return os.path.abspath(os.path.expanduser(location))  # noqa: PTH100, PTH111 - keeps symbolic links


def absolute_folder(name: str) -> str:
    """The absolute path of a folder; `name` itself where there is none, such as a Hugging Face id."""
    place = absolute(name)
    return place if os.path.isdir(place) else name  # noqa: PTH112 - takes any text
