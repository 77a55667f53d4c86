# SPDX-License-Identifier: Apache-2.0
"""A prefix of a bucket as a folder, through obstore."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, BinaryIO, TypeVar

from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.storage.errors import (
    ConflictError,
    RefusedError,
    TakenError,
    is_denied,
    s3_error,
    with_retries,
)
from airflow_provider_raybatch.storage.file import REQUEST_BYTES, Entry, RangedFile, several
from airflow_provider_raybatch.storage.s3_store import s3_store

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store

T = TypeVar("T")

_UPLOADS = 4
"""Parts of a file that are sent at once: on a slow line, each of more parts would take too long."""

_SURE = re.compile(r"[\w./=-]*", re.ASCII)
"""The part of a key that obstore sends unchanged."""

_BLOCK = 256 * 1024
_READ_WHOLE = 1024 * 1024
"""Up to so many bytes are read at once when a file is opened: a second request would take longer."""


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
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def _call(self, verb: str, path: str, call: Callable[[S3Store, str], T]) -> T:
        """What `call` makes of the store and the key of `path`; it may be called again."""
        key = self.key(path)
        return with_retries(lambda: call(s3_store(self.bucket, self.credentials), key), verb, self._uri(key))

    def key(self, path: str) -> str:
        """The key of `path` in the bucket."""
        return "/".join(part for part in (self.prefix, path) if part)

    def _uri(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    def _relative(self, key: str) -> str:
        return key[len(self.prefix) + 1 :] if self.prefix else key

    def list(self, prefix: str = "", depth: int | None = None) -> list[Entry]:
        def attempt(store: S3Store, key: str) -> list[ObjectMeta]:
            if depth == 1:  # one level costs the same, whatever lies below it
                return list(store.list_with_delimiter(prefix=key or None)["objects"])
            return [meta for page in store.list(prefix=key or None) for meta in page]

        key = self.key(prefix)
        entries = [
            _entry(self._relative(meta["path"]), meta)
            for meta in self._call("list", prefix, attempt)
            if depth is None or meta["path"][len(key) :].strip("/").count("/") < depth
        ]
        if not entries and key:
            with contextlib.suppress(RefusedError):  # listing is allowed here, and shows nothing
                entries = [single] if (single := self.head(prefix)) else []
        return sorted(entries, key=lambda entry: entry.path)

    def holds(self, prefix: str) -> bool:
        return self._call(
            "list", prefix, lambda store, key: any(store.list(prefix=key or None, chunk_size=1))
        )

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Names of what lies directly below `prefix` and has files below itself."""
        level = self._call("list", prefix, lambda store, key: store.list_with_delimiter(prefix=key or None))
        return sorted(name for path in level["common_prefixes"] if (name := path.rpartition("/")[2]))

    def head(self, path: str) -> Entry | None:
        if not self.key(path):
            return None  # the bucket itself is not a file

        def attempt(store: S3Store, key: str) -> Entry | None:
            try:
                meta = self._ask(store, key, _head)
            except FileNotFoundError:
                return None
            return _entry(path, meta)

        return self._call("read", path, attempt)

    def _find(self, path: str, ask: Callable[[S3Store, str], T]) -> T:
        """What `ask` finds of a file that must exist."""
        return self._call("read", path, lambda store, key: self._ask(store, key, ask))

    def _ask(self, store: S3Store, key: str, ask: Callable[[S3Store, str], T]) -> T:
        """What `ask` finds of an object.

        S3 hides from a role that may list only below a prefix which keys are missing: it answers 403 instead
        of 404. Then the listing tells.

        :raises FileNotFoundError: it is missing.
        :raises RefusedError: that can't be known.
        """
        from obstore.exceptions import PermissionDeniedError

        try:
            return ask(store, key)
        except PermissionDeniedError as error:
            if _is_listed(store, key, self._uri(key.rpartition("/")[0])):
                raise
            raise FileNotFoundError(f"{key} is not listed") from error

    def read(self, path: str) -> bytes:
        return self._find(path, _content)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._find(path, lambda store, key: bytes(store.get_range(key, start=start, length=length)))

    def read_version(self, path: str, start: int, length: int) -> tuple[bytes, str]:
        """As :meth:`read_range`, with the version of what was read, as :class:`Entry` has it."""

        def attempt(store: S3Store, key: str) -> tuple[bytes, str]:
            found = store.get(key, options={"range": (start, start + length)})
            return bytes(found.bytes()), str(found.meta["e_tag"] or "")

        return self._find(path, attempt)

    def read_blocks(self, path: str, take: Callable[[Entry, Iterable[bytes]], T]) -> T | None:
        """What `take` makes of an object and its content, in blocks of 256 KiB; ``None`` if it is missing.

        :param take: may leave blocks unread, and is called again after a fault of the store.
        """

        def attempt(store: S3Store, key: str) -> T | None:
            try:
                found = self._ask(store, key, lambda store, key: store.get(key))
            except FileNotFoundError:  # which may name any key, and would be judged by its text
                return None
            blocks = found.stream(min_chunk_size=_BLOCK)
            return take(_entry(path, found.meta), (bytes(block) for block in blocks))

        return self._call("read", path, attempt)

    def open(self, path: str, size: int | None = None) -> BinaryIO:
        size = self._find(path, _head)["size"] if size is None else size
        if size <= _READ_WHOLE:
            return io.BytesIO(self.read(path))
        return io.BufferedReader(RangedFile(self, Entry(path, size, "")), REQUEST_BYTES)

    def write(self, path: str, content: bytes | IO[bytes]) -> None:
        def attempt(store: S3Store, key: str) -> None:
            if isinstance(content, bytes):
                store.put(key, content, max_concurrency=_UPLOADS)
            else:  # which may have 64 GiB, and an upload has at most 10,000 parts
                content.seek(0)
                store.put(key, content, chunk_size=REQUEST_BYTES, max_concurrency=_UPLOADS)

        self._call("write", path, attempt)

    def create(self, path: str, content: bytes) -> None:
        """See :class:`Folder`.

        "Taken" has three meanings: another writer's object, our own object after a lost answer (to us, or to
        a repeating proxy), or S3's 409 about a concurrent write, after which there may be no object. Reading
        it back shows which.
        """
        from obstore.exceptions import AlreadyExistsError

        def attempt(store: S3Store, key: str) -> None:
            try:
                # A conditional put must be one request: a multipart upload has no If-None-Match on its start.
                store.put(key, content, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                try:
                    there = self._ask(store, key, _content)
                except FileNotFoundError:
                    raise ConflictError("another creation was under way") from error
                if there != content:
                    raise TakenError(f"destination: {self._uri(key)} exists already.") from error

        self._call("write", path, attempt)

    def replace(self, path: str, old: bytes | None, new: bytes) -> None:
        from obstore.exceptions import PreconditionError

        if old is None:
            self.create(path, new)
            return

        def attempt(store: S3Store, key: str) -> None:
            try:
                found = self._ask(store, key, lambda store, key: store.get(key))
            except FileNotFoundError:
                raise TakenError(f"destination: {self._uri(key)} is gone.") from None
            there = bytes(found.bytes())
            if there == new:
                return  # by a call whose answer was lost
            if there != old:
                raise TakenError(f"destination: {self._uri(key)} has changed.")
            try:
                store.put(key, new, mode={"e_tag": found.meta["e_tag"]}, use_multipart=False)
            except PreconditionError as error:
                raise ConflictError("it was changed meanwhile") from error

        self._call("write", path, attempt)

    def sync(self, path: str = "") -> None:
        """Nothing is to be done: what S3 has acknowledged is stored."""

    def delete(self, paths: Iterable[str]) -> None:
        wanted = several(paths)

        def attempt(store: S3Store, key: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                store.delete([self.key(path) for path in wanted])

        if wanted:
            self._call("delete", wanted[0], attempt)

    def abandoned(self, age: float) -> Sequence[str]:
        return ()


def _is_listed(store: S3Store, key: str, above: str) -> bool:
    """:raises RefusedError: the folder `above` may not be listed."""
    before = _SURE.match(key[:-1])
    prefix = key.rpartition("/")[0]
    pages = store.list(prefix=prefix or None, offset=(before and before.group()) or None)
    try:
        later = (meta["path"] for page in pages for meta in page if meta["path"] >= key)
        return next(later, None) == key
    except Exception as error:
        if not is_denied(error):
            raise
        sentence = s3_error("list", above, error)
        raise RefusedError(str(sentence), sentence.failure_class) from error


def _content(store: S3Store, key: str) -> bytes:
    return bytes(store.get(key).bytes())


def _entry(path: str, meta: ObjectMeta) -> Entry:
    return Entry(path, meta["size"], str(meta["e_tag"] or ""), meta["last_modified"].timestamp())


def _head(store: S3Store, key: str) -> ObjectMeta:
    from obstore.exceptions import GenericError

    try:
        return store.head(key)
    except GenericError as error:
        if "400 Bad Request" in str(error):  # only the answer to a GET has a body, which says why
            store.get_range(key, start=0, length=1)
        raise
