# SPDX-License-Identifier: Apache-2.0
"""A prefix of a bucket as a folder, through obstore."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.storage.entry import Entry
from airflow_provider_raybatch.storage.errors import ConflictError, TakenError
from airflow_provider_raybatch.storage.ranged_file import REQUEST_BYTES, RangedFile
from airflow_provider_raybatch.storage.retry import with_retries
from airflow_provider_raybatch.storage.s3_store import s3_store

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store

_UPLOADS = 4
"""Parts of a file under way at once: more would share a slow line until each of them takes too long."""

_READ_WHOLE = 1024 * 1024
"""Bytes of a file that is opened by one request; these take less time than a second one."""


@dataclass(frozen=True)
class S3Folder:
    """A prefix of a bucket, reached through obstore.

    :param credentials: ``None`` means the cluster's own identity (environment, profile, instance role).
    """

    bucket: str
    prefix: str
    credentials: AwsCredentials | None = None

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix``."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def _store(self) -> S3Store:
        return s3_store(self.bucket, self.credentials)

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self.prefix, path) if part)

    def _uri(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    def _relative(self, key: str) -> str:
        return key[len(self.prefix) + 1 :] if self.prefix else key

    def list(self, prefix: str = "", depth: int | None = None) -> list[Entry]:
        """See :class:`Folder`."""
        key = self._key(prefix)

        def attempt() -> list[ObjectMeta]:
            if depth == 1:  # one level costs the same, whatever lies below it
                return list(self._store().list_with_delimiter(prefix=key or None)["objects"])
            return [meta for page in self._store().list(prefix=key or None) for meta in page]

        found = with_retries(attempt, "list", self._uri(key))
        entries = [
            Entry(self._relative(meta["path"]), meta["size"], str(meta["e_tag"] or ""))
            for meta in found
            if depth is None or meta["path"][len(key) :].strip("/").count("/") < depth
        ]
        if not entries and key and (single := self.head(prefix)):
            entries = [single]
        return sorted(entries, key=lambda entry: entry.path)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Names of what lies directly below `prefix` and has files below itself.

        :raises StorageError: they can't be listed.
        """
        key = self._key(prefix)
        found = with_retries(
            lambda: self._store().list_with_delimiter(prefix=key or None)["common_prefixes"],
            "list",
            self._uri(key),
        )
        return sorted(name for path in found if (name := path.rpartition("/")[2]))

    def head(self, path: str) -> Entry | None:
        """See :class:`Folder`."""
        key = self._key(path)
        if not key:
            return None  # the bucket itself is not a file

        def attempt() -> Entry | None:
            try:
                meta = self._store().head(key)
            except FileNotFoundError:
                return None
            return Entry(path, meta["size"], str(meta["e_tag"] or ""))

        return with_retries(attempt, "read", self._uri(key))

    def read(self, path: str) -> bytes:
        """See :class:`Folder`."""
        key = self._key(path)
        return with_retries(lambda: bytes(self._store().get(key).bytes()), "read", self._uri(key))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See :class:`Folder`."""
        key = self._key(path)
        return with_retries(
            lambda: bytes(self._store().get_range(key, start=start, length=length)),
            "read",
            self._uri(key),
        )

    def open(self, path: str, size: int | None = None) -> BinaryIO:
        """See :class:`Folder`."""
        key = self._key(path)
        if size is None:
            size = with_retries(lambda: self._store().head(key)["size"], "read", self._uri(key))
        if size <= _READ_WHOLE:
            return io.BytesIO(self.read(path))
        return io.BufferedReader(RangedFile(self, Entry(path, size, "")), REQUEST_BYTES)

    def write(self, path: str, content: bytes) -> None:
        """See :class:`Folder`."""
        key = self._key(path)
        with_retries(
            lambda: self._store().put(key, content, max_concurrency=_UPLOADS),
            "write",
            self._uri(key),
        )

    def create(self, path: str, content: bytes) -> None:
        """See :class:`Folder`.

        "Taken" has three meanings: another writer's object, our own object after a lost answer (ours, or a
        repeating proxy's), or S3's 409 about a concurrent write, after which there may be no object.
        Reading it back shows which.
        """
        from obstore.exceptions import AlreadyExistsError

        key = self._key(path)

        def attempt() -> None:
            try:
                # A conditional put must be one request: a multipart upload has no If-None-Match on its start.
                self._store().put(key, content, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                try:
                    there = bytes(self._store().get(key).bytes())
                except FileNotFoundError:
                    raise ConflictError("another creation was under way") from error
                if there != content:
                    raise TakenError(f"destination: {self._uri(key)} exists already.") from error

        with_retries(attempt, "write", self._uri(key))

    def replace(self, path: str, old: bytes | None, new: bytes) -> None:
        """See :class:`Folder`."""
        from obstore.exceptions import PreconditionError

        if old is None:
            self.create(path, new)
            return
        key = self._key(path)

        def attempt() -> None:
            try:
                found = self._store().get(key)
            except FileNotFoundError:
                raise TakenError(f"destination: {self._uri(key)} is gone.") from None
            there = bytes(found.bytes())
            if there == new:
                return  # by a call whose answer was lost
            if there != old:
                raise TakenError(f"destination: {self._uri(key)} has changed.")
            try:
                self._store().put(key, new, mode={"e_tag": found.meta["e_tag"]}, use_multipart=False)
            except PreconditionError as error:
                raise ConflictError("it was changed meanwhile") from error

        with_retries(attempt, "write", self._uri(key))

    def sync(self, path: str = "") -> None:
        """See :class:`Folder`: what S3 has answered is stored."""

    def delete(self, paths: Iterable[str]) -> None:
        """See :class:`Folder`."""
        keys = [self._key(path) for path in paths]

        def attempt() -> None:
            try:
                self._store().delete(keys)
            except FileNotFoundError:
                return

        if keys:
            with_retries(attempt, "delete", self._uri(keys[0]))

    def abandoned(self, age: float) -> Sequence[str]:
        """See :class:`Folder`."""
        return ()
