# SPDX-License-Identifier: Apache-2.0
"""A dataset's repository on the Hugging Face hub, as a folder that is read, at one commit."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.hub_path import HubPath
from airflow_provider_raybatch.job.input.hub_http import HubRefusedError, endpoint, get, is_offline, own_token
from airflow_provider_raybatch.storage.entry import Entry
from airflow_provider_raybatch.storage.errors import StorageError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_BAD_TOKEN = "Invalid credentials in Authorization header"


@dataclass(frozen=True)
class HubFolder:
    """A repository at a commit; see :class:`~airflow_provider_raybatch.storage.folder.Folder`. Read-only.

    :param hub: its address.
    :param dataset: ``owner/name``.
    :param uri: the repository, and the revision as the user wrote it.
    :param token: for private and gated datasets; without one, that of the machine is used, if it has one.
    """

    hub: str
    dataset: str
    uri: str
    revision: str
    commit: str
    token: SecretStr | None = field(default=None, repr=False)

    def pinned(self, path: str) -> str:
        """The URI of a file at this commit."""
        return f"hf://datasets/{self.dataset}@{self.commit}/{path}"

    def list(self, prefix: str = "", depth: int | None = None) -> list[Entry]:
        """Files below `prefix`, sorted by path."""
        found = _tree(self, prefix, depth != 1)
        start = prefix.count("/") + 1 if prefix else 0
        return [one for one in found if depth is None or one.path.count("/") - start < depth]

    def holds(self, prefix: str) -> bool:
        """Whether any file lies below the folder `prefix`."""
        return bool(_tree(self, prefix, True))

    def head(self, path: str) -> Entry | None:
        """One file, ``None`` if there is none."""
        above = path.rpartition("/")[0]
        return next((one for one in _tree(self, above, False) if path and one.path == path), None)

    def read(self, path: str) -> bytes:
        """A whole file."""
        return self._get(path, None)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from byte `start` on; the file must have them."""
        return self._get(path, (start, length)) if length else b""

    def _get(self, path: str, span: tuple[int, int] | None) -> bytes:
        url = f"{self.hub}/datasets/{self.dataset}/resolve/{self.commit}/{quote(path)}"
        try:
            return _asked(self, url, span)[0]
        except HubRefusedError as refusal:
            if refusal.status in (404, 416):
                raise self._gone(path) from refusal
            raise _refused(self, refusal) from refusal

    def _gone(self, path: str) -> StorageError:
        return StorageError(
            f"source: {self.pinned(path)} is gone from the hub, as after a rewritten history; run the task "
            "again, which lists the files anew."
        )


def open_hub(at: HubPath, token: SecretStr | None) -> HubFolder:
    """The repository at the commit that its revision names now.

    :raises StorageError: there is none, or the token may not see it.
    """
    if is_offline():
        raise StorageError(
            f"source: {at.written} is on the Hugging Face hub, and HF_HUB_OFFLINE is set on the cluster; "
            "unset it, or copy the files into a bucket.",
            FailureClass.USER_ERROR,
        )
    place = HubFolder(endpoint(), at.dataset, at.written, at.revision, at.revision, token)
    if _COMMIT.fullmatch(at.revision):
        return place
    url = f"{place.hub}/api/datasets/{at.dataset}/revision/{quote(at.revision, safe='')}"
    found = _document(place, url)[0]
    commit = found.get("sha") if isinstance(found, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise _strange(url)
    return replace(place, commit=commit)


@functools.lru_cache(64)
def _tree(place: HubFolder, prefix: str, is_recursive: bool) -> tuple[Entry, ...]:
    """Files below a folder. Of one commit, so always the same."""
    found = [
        Entry(one["path"], int(one["size"]), str((one.get("lfs") or one)["oid"]))
        for one in _entries(place, prefix, is_recursive)
        if one.get("type") == "file"
    ]
    return tuple(sorted(found, key=lambda entry: entry.path))


def _entries(place: HubFolder, prefix: str, is_recursive: bool) -> Iterator[dict[str, Any]]:
    base = f"{place.hub}/api/datasets/{place.dataset}/tree/{place.commit}"
    base += f"/{quote(prefix, safe='')}" if prefix else ""
    query = f"recursive={str(is_recursive).lower()}&expand=false"
    while query:
        try:
            page, following = _document(place, f"{base}?{query}")
        except HubRefusedError as refusal:
            if refusal.code == "EntryNotFound":
                return
            raise _refused(place, refusal) from refusal
        if not isinstance(page, list):
            raise _strange(base)
        yield from page
        query = following


def _document(place: HubFolder, url: str) -> tuple[Any, str]:
    """A JSON answer, and the query of its next page, which a mirror may give under another host."""
    try:
        content, headers = _asked(place, url, None)
        found = json.loads(content)
    except HubRefusedError as refusal:
        if refusal.code == "EntryNotFound":
            raise
        raise _refused(place, refusal) from refusal
    except ValueError as error:
        raise _strange(url) from error
    following = re.search(r'<([^>]*)>\s*;\s*rel="next"', str(headers.get("Link") or ""))
    return found, urlsplit(following[1]).query if following else ""


def _asked(place: HubFolder, url: str, span: tuple[int, int] | None) -> tuple[bytes, Any]:
    return get(url, place.token or own_token(), span)


def _strange(url: str) -> StorageError:
    return StorageError(
        f"source: {url} does not answer as the Hugging Face hub does; check HF_ENDPOINT.",
        FailureClass.USER_ERROR,
    )


def _refused(place: HubFolder, refusal: HubRefusedError) -> StorageError:
    """What a refusal means, as huggingface_hub reads it."""
    name, status, code = place.dataset, refusal.status, refusal.code
    has_token = bool(place.token or own_token())
    if code == "RevisionNotFound":
        said = f"dataset {name} has no revision {place.revision!r}; name a branch, a tag or a commit"
    elif code == "GatedRepo":
        said = (
            f"dataset {name} is gated; accept its terms at {place.hub}/datasets/{name}, and name a "
            "connection with that account's token in hf_conn_id"
        )
    elif has_token and status == 401 and refusal.reason == _BAD_TOKEN:
        said = "the hub refuses the token; put a new one into the connection of hf_conn_id"
    elif code == "RepoNotFound" or status in (401, 404):
        to = "to the holder of this token" if has_token else "without a token"
        said = (
            f"the hub shows no dataset {name} {to}; check its name, and where it is private name a "
            "connection with a token of a member in hf_conn_id"
        )
    else:
        why = f" ({refusal.reason})" if refusal.reason else ""
        said = f"the hub refuses dataset {name} with status {status}{why}; check the token's rights"
    return StorageError(f"source: {said}.", FailureClass.USER_ERROR)
