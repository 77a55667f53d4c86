# SPDX-License-Identifier: Apache-2.0
"""Names in folders: the first ones of a large folder, without a look at the others, and links among them.

Nodes of a cluster may write to a shared folder. A link that they make there leads to a file of its reader: so
who may write a dataset could read what the API server may read, such as Airflow's configuration.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.layout import SCRATCH
from airflow_provider_raybatch.storage.entry import inside
from airflow_provider_raybatch.storage.errors import StorageError, local_errors
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder, ReadableFolder
from airflow_provider_raybatch.storage.retry import with_retries
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from airflow_provider_raybatch.storage.s3_store import s3_store

if TYPE_CHECKING:
    from obstore.store import S3Store


def first_names(place: Folder, path: str, most: int | None = None, after: str = "") -> list[str]:
    """Names of the first files of a folder, which has no folders below it; none where it is missing.

    In S3 a request lists a thousand of them; on a disk, names alone are read.

    :param most: names; ``None`` for all.
    :param after: a name, also of a file that is missing; names begin behind it.
    :raises StorageError: the storage does not answer.
    """
    if isinstance(place, S3Folder):
        return _of_bucket(place, place.key(path), most, after)
    full = inside(place.uri, path)
    with local_errors("list", full), contextlib.suppress(FileNotFoundError), os.scandir(full) as entries:
        names = (entry.name for entry in entries if entry.name > after)
        own = (name for name in names if not name.startswith(SCRATCH))
        return sorted(own) if most is None else heapq.nsmallest(most, own)
    return []


def _of_bucket(place: S3Folder, key: str, most: int | None, after: str) -> list[str]:
    def attempt() -> list[str]:
        store: S3Store = s3_store(place.bucket, place.credentials)
        found: list[str] = []
        for page in store.list(prefix=key, offset=f"{key}/{after}" if after else None):
            found += [meta["path"][len(key) + 1 :] for meta in page]
            if most is not None and len(found) >= most:
                break
        return found[:most]

    return with_retries(attempt, "list", f"s3://{place.bucket}/{key}")


def check_no_links(place: ReadableFolder, paths: Iterable[str]) -> None:
    """Check that files lie where their paths say. Buckets have no links.

    The folder itself may be behind a link, and the first folder of each path: administrators set those up.

    :raises StorageError: a path leads through a link.
    """
    if not isinstance(place, LocalFolder):
        return
    for path in paths:
        full, (first, _, rest) = inside(place.root, path), path.partition("/")
        if full.resolve() != inside(place.root, first).resolve() / rest:
            raise StorageError(
                f"{full}: it is behind a symbolic link, which is not followed here; replace the link by what "
                "it leads to.",
                FailureClass.USER_ERROR,
            )
