# SPDX-License-Identifier: Apache-2.0
"""Which files a model has."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_raybatch.contract.digest import hex_digest

COMMIT = re.compile(r"[0-9a-f]{40}")
"""A commit of the hub's, as a whole text."""

_HASHED_WHOLE = 64 * 1024 * 1024
_SAMPLES, _SAMPLE_BYTES = 64, 64 * 1024


def model_digest(name: str, revision: str) -> str:
    """What tells one version of a model from another.

    Of a folder: the names and sizes of its files with their content, of large ones samples of it: weights
    that were trained further differ everywhere. Of a hub's model: its name and commit.
    """
    folder = Path(name)
    if folder.is_dir():
        state = hashlib.sha256()
        for path in sorted(file for file in folder.iterdir() if file.is_file()):
            state.update(f"{path.name}:{path.stat().st_size}\n".encode())
            for piece in _content(path):
                state.update(piece)
        return state.hexdigest()[:32]
    return hex_digest(f"{name}@{revision}")


def _content(path: Path) -> Iterator[bytes]:
    """A file's content, of a large one samples from its beginning to its end."""
    size = path.stat().st_size
    if size <= _HASHED_WHOLE:
        yield path.read_bytes()
        return
    with path.open("rb") as stream:
        for number in range(_SAMPLES):
            stream.seek((size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
            yield stream.read(_SAMPLE_BYTES)
