# SPDX-License-Identifier: Apache-2.0
"""Try the writes that keep jobs apart, which not every store and file system has.

Some stores answer 501 to ``If-None-Match`` or ``If-Match``; others ignore the header, and then two claims of
one destination succeed.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.layout import SCRATCH
from airflow_provider_raybatch.storage import retry
from airflow_provider_raybatch.storage.errors import (
    StorageError,
    answer,
    local_errors,
    may_recover,
    not_offered,
)
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.retry import with_retries
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from airflow_provider_raybatch.storage.s3_store import s3_store

if TYPE_CHECKING:
    from obstore import PutMode

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

    key, once = place.key(path), replace(retry.RETRY_LIMITS, repeats=0)

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
