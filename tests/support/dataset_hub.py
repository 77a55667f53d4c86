# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face hub of datasets and its content network, over real TLS: what a dataset's files are read by.

As on the real one, listings come in pages, large files lie behind signed URLs of another server, which
refuses a request with a login, and a private dataset looks like one that is not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.http_server import Authority, Handler, listening

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""

_PAGE = 2
_LARGE = 2000
"""Bytes from which a file lies in the content network."""
_API = re.compile(r"/api/datasets/([^/]+/[^/]+)/(revision|tree)/([^/]+)/?(.*)")
_FILE = re.compile(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.*)")


@dataclass
class Asked:
    """A request: `server` is ``hub`` or ``cdn``."""

    server: str
    path: str
    login: str


@dataclass
class DatasetHub:
    """A hub; `url` is its ``HF_ENDPOINT``.

    :ivar branches: commit of each revision, by dataset and name.
    :ivar tokens: those with access; by default anyone has.
    :ivar is_gated: whether others see all but the files. Else the dataset is private.
    :ivar troubles: answers to the next requests of either server, before it is well again.
    :ivar pings: requests that asked whether it answers.
    """

    url: str
    cdn: str
    authority: Path
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tokens: set[str] | None = None
    is_gated: bool = False
    troubles: deque[Answer] = field(default_factory=deque)
    asked: list[Asked] = field(default_factory=list)
    pings: int = 0

    def push(self, name: str, files: Mapping[str, bytes], revision: str = "main") -> str:
        """Make `files` the next commit of a branch, and return it."""
        commit = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.branches[name, revision] = commit
        return commit

    def answer(self, server: str, target: str, login: str, span: str) -> Answer:
        """Answer a GET."""
        if target == "/api/":
            self.pings += 1
            return 404, {}, b""
        self.asked.append(Asked(server, target, login))
        if self.troubles:
            return self.troubles.popleft()
        if server == "cdn":
            return self._of_network(target, login, span)
        parts = urlsplit(target)
        token = login.removeprefix("Bearer ")
        has_access = self.tokens is None or token in self.tokens
        if token and self.tokens is not None and not token.startswith("hf_"):
            return 401, {"X-Error-Message": "Invalid credentials in Authorization header"}, b""
        found = _API.fullmatch(parts.path)
        if found:
            if not has_access and not self.is_gated:
                return _error(401, "RepoNotFound")
            return self._listed(*map(unquote, found.groups()), parse_qs(parts.query))
        found = _FILE.fullmatch(parts.path)
        if not found:
            return 404, {}, b""
        if not has_access:
            return _error(403, "GatedRepo") if self.is_gated else _error(401, "RepoNotFound")
        return self._file(*map(unquote, found.groups()), span)

    def _commit(self, name: str, revision: str) -> tuple[str, Answer | None]:
        if not any(name == known for known, _ in self.branches):
            return "", _error(401, "RepoNotFound")
        commit = self.branches.get((name, revision), revision)
        return commit, None if commit in self.commits else _error(404, "RevisionNotFound")

    def _listed(self, name: str, kind: str, revision: str, path: str, query: dict[str, Any]) -> Answer:
        commit, error = self._commit(name, revision)
        if error:
            return error
        if kind == "revision":
            return _json({"id": name, "sha": commit})
        start, below = int(query.get("cursor", ["0"])[0]), f"{path}/" if path else ""
        inside = {one: content for one, content in self.commits[commit].items() if one.startswith(below)}
        if not inside:
            return _error(404, "EntryNotFound")
        folders = {one[: one.index("/", len(below))] for one in inside if "/" in one[len(below) :]}
        is_recursive = query["recursive"] == ["true"]
        entries: list[dict[str, Any]] = [
            {"type": "directory", "path": one, "oid": "0"} for one in sorted(folders)
        ]
        entries += [
            _entry(one, content)
            for one, content in inside.items()
            if is_recursive or "/" not in one[len(below) :]
        ]
        headers = {}
        if start + _PAGE < len(entries):
            # A mirror may give the hub's own address here.
            following = f"https://hub.example/x?recursive={query['recursive'][0]}&cursor={start + _PAGE}"
            headers["Link"] = f'<{following}>; rel="next"'
        return _json(entries[start : start + _PAGE], headers)

    def _file(self, name: str, revision: str, path: str, span: str) -> Answer:
        commit, error = self._commit(name, revision)
        if error:
            return error
        content = self.commits[commit].get(path)
        if content is None:
            return _error(404, "EntryNotFound")
        if len(content) < _LARGE:
            return _ranged(content, span)
        return 302, {"Location": f"{self.cdn}/{commit}/{path}?signature=x"}, b""

    def _of_network(self, target: str, login: str, span: str) -> Answer:
        path, _, query = target.partition("?")
        commit, _, name = unquote(path).lstrip("/").partition("/")
        if login or query != "signature=x":
            return 400, {}, b"Only one auth mechanism allowed"
        return _ranged(self.commits[commit][name], span)


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry = {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
    if len(content) >= _LARGE:
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return entry


def _ranged(content: bytes, span: str) -> Answer:
    if not span:
        return 200, {}, content
    first, last = map(int, span.removeprefix("bytes=").split("-"))
    if first >= len(content):
        return 416, {}, b""
    return 206, {"Content-Range": f"bytes {first}-{last}/{len(content)}"}, content[first : last + 1]


def _json(found: Any, headers: Mapping[str, str] | None = None) -> Answer:
    return 200, {"Content-Type": "application/json", **(headers or {})}, json.dumps(found).encode()


def _error(status: int, code: str) -> Answer:
    return status, {"X-Error-Code": code}, b""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[DatasetHub]:
    """Serve an empty hub on free ports.

    :param folder: gets the file of its certificate authority, which ``SSL_CERT_FILE`` must name.
    """
    authority = Authority(folder)
    pem = authority.server()

    def answering(server: str) -> type[Handler]:
        class Answering(Handler):
            def do_GET(self) -> None:  # noqa: N802 - http.server's name
                login, span = (self.headers.get(name, "") for name in ("Authorization", "Range"))
                status, headers, body = hub.answer(server, self.path, login, span)
                self.send(status, body, headers)

        return Answering

    with listening(answering("hub"), pem) as port, listening(answering("cdn"), pem) as cdn:
        hub = DatasetHub(f"https://localhost:{port}", f"https://localhost:{cdn}", authority.pem)
        yield hub
