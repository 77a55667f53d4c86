# SPDX-License-Identifier: Apache-2.0
"""Names of files and batches. Those of clients are checked before they become part of a path."""

from __future__ import annotations

import re
import secrets

from airflow_provider_raybatch.contract.digest import hex_digest

TASK_ID = "answer"
"""The task of a batch's DAG run."""
_FILE = re.compile(r"file-[0-9a-f]{32}")
_BATCH = re.compile(r"batch_[0-9a-f]{32}")
_LATEST = 10**13
"""Milliseconds, in the year 2286: keys count down from here, so that listings begin with the newest."""


def new_file_id() -> str:
    """A name that can't be guessed."""
    return f"file-{secrets.token_hex(16)}"


def new_batch_id() -> str:
    """A name that can't be guessed; its DAG run has it, too."""
    return f"batch_{secrets.token_hex(16)}"


def is_file_id(text: str) -> bool:
    """Whether a text may be the name of a file."""
    return _FILE.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    """Whether a text may be the name of a batch."""
    return _BATCH.fullmatch(text) is not None


def output_file_id(batch_id: str, kind: str) -> str:
    """The name of a file that a batch makes, so that whoever ends the batch gives it the same one.

    :param kind: ``output`` or ``error``.
    """
    return f"file-{hex_digest(f'{batch_id}/{kind}')}"


def newest_first(created_at: float, name: str) -> str:
    """A key of `name`; in the order of keys, later ones come first.

    :param created_at: epoch seconds.
    """
    return f"{_LATEST - int(created_at * 1000):013d}-{name}"


def created_at(countdown: str) -> float:
    """When something was created, in epoch seconds.

    :param countdown: the digits that its key begins with, see :func:`newest_first`.
    """
    return (_LATEST - int(countdown)) / 1000


def owner_digest(owner: str) -> str:
    """A user's folder, whose name must not depend on what user names may hold."""
    return hex_digest(owner)
