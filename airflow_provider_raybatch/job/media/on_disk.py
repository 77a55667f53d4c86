# SPDX-License-Identifier: Apache-2.0
"""Images in files that the node sees.

Links are resolved, and the result must lie below the root. Then the file is opened folder by folder without
following links, so that a link that is made meanwhile leads nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from airflow_provider_raybatch.job.media.allowed import DiskFile, ImageAccess, check_size, joined, shown_image
from airflow_provider_raybatch.job.row import ImageError
from airflow_provider_raybatch.storage.errors import StorageError, local_errors

_BLOCK = 1024 * 1024
_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
"""Where there is O_PATH, a folder that may be entered need not be listed."""
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""O_NONBLOCK: the open of a pipe would wait for its writer."""
_OF_THE_FILE = frozenset({
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.ENXIO, errno.ENODEV, errno.EINVAL,
})  # fmt: skip
"""Errors after which the same call fails alike; any other is one of the disk."""


def read_file(place: DiskFile, access: ImageAccess) -> bytes:
    """The content of a file.

    :raises ImageError: it is not there, not a file, outside of its root, too large or too slow.
    :raises StorageError: the disk fails, or the node does not see the root.
    """
    name, deadline = shown_image(place.path), time.monotonic() + access.timeout
    root, names = _resolved(place)
    with local_errors("read", Path(root)):
        folder = os.open(root, _FOLDER)
    try:
        file = _opened(folder, names)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise ImageError(f"{name} is not a file with content; name a file")
            check_size(found.st_size, name, access)
            return joined(_blocks(file), name, access, deadline)
        finally:
            os.close(file)
    except OSError as error:
        said = error.strerror or str(error)
        if error.errno in _OF_THE_FILE:
            raise ImageError(
                f"{name} can't be read ({said}); check the path, and that all nodes see the file"
            ) from error
        raise StorageError(f"{name}: can't read it ({said}).") from error
    finally:
        os.close(folder)


def _resolved(place: DiskFile) -> tuple[str, Sequence[str]]:
    """The root and the names below it, without links.

    :raises ImageError: a link leads out of it.
    """
    path = os.path.realpath(place.path)
    for root in map(os.path.realpath, place.roots):
        start = root.rstrip("/") + "/"
        if path.startswith(start) and path != start:
            return root, path[len(start) :].split("/")
    raise ImageError(
        f"{shown_image(place.path)} is a link out of {place.roots[0]}; add the folder that it leads to to "
        "image_roots"
    )


def _opened(folder: int, names: Sequence[str]) -> int:
    """A descriptor of the file at `names` below an open folder."""
    *above, last = names
    inner: list[int] = []
    try:
        for name in above:
            inner.append(os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=inner[-1] if inner else folder))
        return os.open(last, _FILE, dir_fd=inner[-1] if inner else folder)
    finally:
        for one in inner:
            os.close(one)


def _blocks(file: int) -> Iterator[bytes]:
    return iter(lambda: os.read(file, _BLOCK), b"")
