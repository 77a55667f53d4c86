# SPDX-License-Identifier: Apache-2.0
"""What is asked of disks and of S3 in different ways: tries of conditional writes, first names, links.

Some stores answer 501 to ``If-None-Match`` or ``If-Match``; others ignore the header, and then two claims of
one destination succeed.

Nodes of a cluster may write to a shared folder. A link that they make there leads to a file of its reader: so
who may write a dataset could read what the API server may read, such as Airflow's configuration.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.layout import SCRATCH
from airflow_provider_raybatch.storage import errors
from airflow_provider_raybatch.storage.errors import (
    StorageError,
    answer,
    local_errors,
    may_recover,
    not_offered,
    with_retries,
)
from airflow_provider_raybatch.storage.file import inside
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder, ReadableFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from airflow_provider_raybatch.storage.s3_store import s3_store

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import S3Store


_NEVER = '"00000000000000000000000000000000"'
"""An ETag that no object has."""


def check_conditional_writes(place: Folder, unused: str, known: tuple[str, bytes] | None) -> None:
    """Check that a file can be created only once, and replaced only if it has not changed.

    Costs S3 two or three requests. Changes no content, and leaves no file.

    :param unused: a path that no other writer uses.
    :param known: path and content of a file that never changes, if there is one. The same content is
        written, so a store that ignores the condition does no harm.
    :raises StorageError: the store or file system does not keep the condition; or it can't be written.
    """
    if isinstance(place, LocalFolder):
        _check_disk(place)
    elif isinstance(place, S3Folder):
        if known is None:
            _check_creation(place, unused)
        else:
            path, content = known
            _check(place, "If-None-Match", not _put(place, path, content, "create"))
            _check(place, "If-Match", not _put(place, path, content, {"e_tag": _NEVER}))


def _check_disk(place: LocalFolder) -> None:
    root = Path(place.root)
    with local_errors("write", root):
        while not root.is_dir() and root != root.parent:
            root = root.parent
    above, name = LocalFolder(str(root)), f"{SCRATCH}{uuid.uuid4().hex}"
    try:
        above.create(name, b"")
        above.delete([name])
    except StorageError as error:
        said = str(error).replace(str(root / name), place.root, 1)
        raise StorageError(said, error.failure_class) from error


def _check_creation(place: S3Folder, path: str) -> None:
    try:
        # The first one is refused where its answer was lost and it was repeated, which shows the same.
        kept = not (_put(place, path, b"1", "create") and _put(place, path, b"2", "create"))
    except BaseException:
        with contextlib.suppress(StorageError):
            place.delete([path])
        raise
    place.delete([path])
    _check(place, "If-None-Match", kept)


def _check(place: S3Folder, header: str, kept: bool) -> None:
    if not kept:
        raise _refusal(place, header, "ignores")


def _refusal(place: S3Folder, header: str, does: str) -> StorageError:
    return StorageError(
        f"{place.uri}: its store {does} the header {header}, so two jobs could publish there at once; choose "
        "a store with conditional writes (such as Amazon S3, MinIO or Cloudflare R2), or a shared disk.",
        FailureClass.USER_ERROR,
    )


def _put(place: S3Folder, path: str, content: bytes, mode: PutMode) -> bool:
    """Whether a conditional put was done.

    obstore itself repeats nothing here: it would go on for a minute if the store lacks such puts.
    """
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    key, once = place.key(path), replace(errors.RETRY_LIMITS, repeats=0)

    def attempt() -> bool:
        store = s3_store(place.bucket, place.credentials, once)
        try:
            store.put(key, content, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError) as error:
            if may_recover(error):
                raise
            return False
        except Exception as error:
            if not_offered(error):
                header = "If-None-Match" if mode == "create" else "If-Match"
                raise _refusal(place, f"{header} ({answer(str(error))})", "refuses") from error
            raise
        return True

    return with_retries(attempt, "write", f"s3://{place.bucket}/{key}")


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
