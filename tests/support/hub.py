# SPDX-License-Identifier: Apache-2.0
"""The few requests of a model hub that ``huggingface_hub`` makes to read a model, over real HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.http_server import Handler, listening

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@dataclass
class Hub:
    """A hub; `url` is its ``HF_ENDPOINT``.

    :ivar main: the commit that the branch ``main`` of each model has, by name.
    :ivar tokens: those with access to files; by default anyone has.
    :ivar is_private: whether others don't even see the model. Else it is gated: they see all but its files.
    :ivar is_down: whether it answers that it is.
    :ivar asked: method and path of each request.
    :ivar pings: requests that asked whether it answers.
    """

    url: str
    main: dict[str, str] = field(default_factory=dict)
    commits: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    tokens: set[str] | None = None
    is_private: bool = False
    is_down: bool = False
    asked: list[str] = field(default_factory=list)
    pings: int = 0

    def push(self, name: str, folder: Path, **changed: bytes) -> str:
        """Make `folder` the next commit of a model's ``main``.

        :param changed: other contents, by the stems of JSON files.
        """
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        files |= {f"{stem}.json": content for stem, content in changed.items()}
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[name, commit] = files
        self.main[name] = commit
        return commit

    def answer(self, method: str, path: str, token: str) -> Answer:
        """Answer a request for a model, or for one of its files."""
        is_api = path.startswith("/api/models/")
        if is_api or not path.startswith("/api/"):  # the client may ask for more than models
            self.asked.append(f"{method} {path}")
        self.pings += path.endswith("/api/")
        if self.is_down:
            return 501, {}, b""  # which the client does not repeat for minutes, as 503
        owner, model, kind, revision, *rest = [*path.removeprefix("/api/models").split("/")[1:], "", ""]
        name = f"{owner}/{model}"
        has_access = self.tokens is None or token in self.tokens
        if name not in self.main or (self.is_private and not has_access):
            return _error(401, "RepoNotFound")
        commit = self.main[name] if revision in {"", "main"} else revision
        files = self.commits.get((name, commit))
        if files is None:
            return _error(404, "RevisionNotFound")
        if is_api:
            return _listed(name, commit, files, kind)
        if not has_access:
            return _error(403, "GatedRepo")
        return _file(commit, files.get("/".join(filter(None, rest))))


def _listed(name: str, commit: str, files: dict[str, bytes], kind: str) -> Answer:
    tree = [{"type": "file", "path": one, "size": len(files[one]), "oid": "0"} for one in files]
    siblings = [{"rfilename": one} for one in files]
    found = tree if kind == "tree" else {"id": name, "sha": commit, "siblings": siblings}
    return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()


def _file(commit: str, content: bytes | None) -> Answer:
    if content is None:
        return 404, {"X-Repo-Commit": commit, "X-Error-Code": "EntryNotFound"}, b""
    return 200, {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}, content


def _error(status: int, code: str) -> Answer:
    return status, {"X-Error-Code": code}, b""


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """Serve an empty hub on a free port."""

    class Answering(Handler):
        def reply(self) -> None:
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            status, headers, body = hub.answer(self.command, unquote(urlsplit(self.path).path), token)
            self.send(status, body, headers)

        do_GET = do_HEAD = reply  # noqa: N815 - http.server's names

    with listening(Answering) as port:
        hub = Hub(f"http://127.0.0.1:{port}")
        yield hub
