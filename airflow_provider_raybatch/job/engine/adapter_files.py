# SPDX-License-Identifier: Apache-2.0
"""Where this node has an adapter's files: vLLM reads adapters from folders alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from airflow_provider_raybatch.contract.arguments.adapters import is_on_hub, revision_of
from airflow_provider_raybatch.contract.digest import hex_digest
from airflow_provider_raybatch.storage.folder import folder

_FILES = ("adapter_config.json", "adapter_model.*")
_KEPT = 30 * 86400.0
"""Seconds for which a copy is kept that no engine opens."""


def local_folder(location: str, content: str) -> str:
    """The folder of an adapter on this node, which is copied if it lies elsewhere.

    :param location: a folder, ``s3://...`` or a name on the hub, with its commit after an ``@``.
    :param content: identifies what lies there.
    :raises StorageError: it can't be read from S3, or not be written here.
    :raises Exception: of the hub's client.
    """
    if location.startswith("/"):
        return location
    if is_on_hub(location):
        from huggingface_hub import snapshot_download

        name, revision = revision_of(location)
        return snapshot_download(name, revision=revision, allow_patterns=list(_FILES))
    return str(_copied(location, content))


def _copied(location: str, content: str) -> Path:
    """A copy that all engines of this node share. It appears whole, by a rename."""
    home = _home()
    place = home / hex_digest(content)
    if not place.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        source = folder(location.rstrip("/"))
        with tempfile.TemporaryDirectory(prefix=".", dir=home) as scratch:
            made = Path(scratch, "adapter")
            made.mkdir()
            for entry in source.list(depth=1):
                if entry.path.startswith(("adapter_config.json", "adapter_model.")):
                    (made / entry.path).write_bytes(source.read(entry.path))
            with contextlib.suppress(OSError):  # another engine was first
                made.rename(place)
    os.utime(place)
    _forget_old(home)
    return place


def _home() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError, OSError):  # the user has no home directory, or may not write there
        made = Path(base, "airflow_provider_raybatch", "adapters").expanduser()
        made.mkdir(parents=True, exist_ok=True)
        return made
    return Path(tempfile.gettempdir(), f"raybatch-adapters-{os.getuid()}")


def _forget_old(home: Path) -> None:
    with contextlib.suppress(OSError):
        for copy in home.iterdir():
            if time.time() - copy.stat().st_mtime > _KEPT:
                shutil.rmtree(copy, ignore_errors=True)
