# SPDX-License-Identifier: Apache-2.0
"""A dataset's repository on the Hugging Face hub, as a folder that is read, at one commit.

By ``urllib`` and not by ``huggingface_hub``: nodes without vLLM lack it, its HTTP client changed between
versions, and a redirect is followed by the rules of
:mod:`~airflow_provider_raybatch.job.input.guarded_http`. The token goes to the hub alone. A request is made
again while the hub or the network is in trouble.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.location import HubPath
from airflow_provider_raybatch.contract.text import count_of, in_words, shown_uri
from airflow_provider_raybatch.job.input.guarded_http import GuardedRequest, build_opener, untrusted
from airflow_provider_raybatch.storage.errors import RETRY_LIMITS, StorageError
from airflow_provider_raybatch.storage.file import Entry

_LONGEST = 330.0
"""Seconds after which no new attempt is made: the hub's limits count requests of five minutes."""
_FIRST_PAUSE = 0.5
_BLOCK = 1024 * 1024
_SILENCE = 10.0
"""Seconds without an answer after which a hub counts as out of reach."""
PING = "/api/"
"""Path that costs a hub nothing; any answer to it will do."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BAD_TOKEN = "Invalid credentials in Authorization header"


@dataclass(eq=False)
class HubRefusedError(Exception):
    """The hub refuses a request, and would again.

    :param status: of HTTP.
    :param code: the hub's own word, such as ``EntryNotFound``; often empty.
    :param reason: its sentence; often empty.
    """

    status: int
    code: str
    reason: str


def endpoint() -> str:
    """The hub's address: ``HF_ENDPOINT`` of the environment, such as that of a mirror, or its own."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def is_offline() -> bool:
    """Whether the environment says that the hub must not be asked."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}


def refuse_silent_hub(what: str, remedy: str, hub: str, ask: Callable[[], object]) -> None:
    """Refuse a hub that can't be reached, before something tries for minutes to read from it.

    :param what: field and value, the beginning of the sentence.
    :param remedy: its end.
    :param ask: makes a request, and raises an exception if no answer comes.
    :raises StorageError: there was no answer for ten seconds.
    """
    silence, deadline = ["it does not answer"], time.monotonic() + _SILENCE

    def asking() -> None:
        while silence and time.monotonic() < deadline:
            try:
                ask()
                silence.clear()
            except Exception as error:  # each HTTP client raises its own
                silence[:] = [str(getattr(error, "reason", error)) or type(error).__name__]
                time.sleep(1)

    # The lookup of a name has no timeout, so it must not be waited for.
    asker = threading.Thread(target=asking, daemon=True)
    asker.start()
    asker.join(_SILENCE)
    if told := silence[:1]:  # the thread may still clear it
        raise StorageError(
            f"{what} is on the hub at {shown_uri(hub)}, which can't be reached from the cluster "
            f"({told[0]}); set HTTPS_PROXY, or HF_ENDPOINT to a mirror, on its nodes, {remedy}."
        )


def refuse_source_out_of_reach(source: str) -> None:
    """See :func:`refuse_silent_hub`; an offline hub is refused with another sentence."""
    if not is_offline():
        hub, remedy = endpoint(), "or copy the files into a bucket"
        refuse_silent_hub(f"source: {source}", remedy, hub, lambda: ping(hub))


def ping(hub: str) -> None:
    """Ask for any answer of the hub.

    :raises OSError: there is none.
    """
    with contextlib.suppress(HTTPError, StorageError):  # the next request says better what is refused
        try:
            build_opener().open(GuardedRequest(hub + PING), timeout=_SILENCE).close()
        except OSError as error:
            _check_certificate(hub, error)
            raise


def own_token() -> SecretStr | None:
    """The token of this machine, where ``huggingface_hub`` looks for it, too."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    file = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    try:
        token = os.environ.get("HF_TOKEN") or file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return SecretStr(token.strip()) if token.strip() else None


def get(url: str, token: SecretStr | None, span: tuple[int, int] | None = None) -> tuple[bytes, Message]:
    """The content behind a URL of the hub, and the headers of the answer.

    :param span: first byte and number of bytes, at least 1; by default all.
    :raises HubRefusedError: the hub refuses.
    :raises StorageError: it does not answer as it should for minutes, or redirects to where nothing is read.
    """
    began, pause = time.monotonic(), _FIRST_PAUSE
    while True:
        try:
            return _answered(url, token, span)
        except HTTPError as error:
            if not (error.code in (408, 429) or error.code >= 500):
                message = str(error.headers.get("X-Error-Message") or "")
                raise HubRefusedError(error.code, error.headers.get("X-Error-Code") or "", message) from error
            said = f"the server answered {error.code}"
            cause: Exception = error
        except (http.client.HTTPException, OSError) as error:
            _check_certificate(url, error)
            said, cause = in_words(type(error).__name__, str(getattr(error, "reason", error))), error
        tried, pause = time.monotonic() - began, pause * random.uniform(0.5, 1)
        if tried + pause > _LONGEST:
            raise StorageError(
                f"source: {shown_uri(url)} can't be read, {said}, tried for {round(tried)} s; check that "
                "the hub can be reached from the cluster: a retry of the task goes on with the rows that are "
                "finished."
            ) from cause
        time.sleep(pause)
        pause = min(2 * pause, RETRY_LIMITS.longest_pause)


def _answered(url: str, token: SecretStr | None, span: tuple[int, int] | None) -> tuple[bytes, Message]:
    login = f"Bearer {token.get_secret_value()}" if token else ""
    wanted = f"bytes={span[0]}-{span[0] + span[1] - 1}" if span else ""
    request = GuardedRequest(url, span=wanted, login=login)
    with build_opener().open(request, timeout=RETRY_LIMITS.answer) as answer:
        if span is None:
            return answer.read(), answer.headers
        start, length = span
        while answer.status == 200 and start > 0 and (block := answer.read(min(start, _BLOCK))):
            start -= len(block)  # a server that knows no ranges sends all
        content = answer.read(length)
    if len(content) < length:
        raise OSError(f"only {len(content):,} of {count_of(length, 'byte')} came")
    return content, answer.headers


def _check_certificate(url: str, error: Exception) -> None:
    if why := untrusted(error):
        said = f"source: {shown_uri(url)} can't be read, {why}"
        raise StorageError(said, FailureClass.USER_ERROR) from error


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
