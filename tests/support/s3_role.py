# SPDX-License-Identifier: Apache-2.0
"""An S3 API for a role: what its IAM policy does not allow is refused as AWS refuses it."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from tests.support.s3_server import S3Server, WsgiApp, serving

LIST, GET, PUT, DELETE = "s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"


@dataclass(frozen=True, order=True)
class Right:
    """An action, and what it is allowed for.

    :param pattern: of ``bucket/key``; for ListBucket of ``bucket/`` and the prefix that is listed.
    """

    action: str
    pattern: str


def rights_of(policy: dict[str, Any]) -> list[Right]:
    """Return the rights of an IAM policy that allows only, with `s3:prefix` as its only condition."""
    found = []
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        for action in _all(statement["Action"]):
            for arn in _all(statement["Resource"]):
                place = arn.removeprefix("arn:aws:s3:::")
                if action == LIST:
                    prefixes = _all(statement["Condition"]["StringLike"]["s3:prefix"])
                    found += [Right(action, f"{place}/{prefix}") for prefix in prefixes]
                else:
                    found.append(Right(action, place))
    return found


def _all(values: str | list[str]) -> list[str]:
    return [values] if isinstance(values, str) else values


@dataclass
class Role:
    """What the server allows, and what it refused.

    :param rights: may be changed at any time.
    :param refused: an action and ``bucket/key`` each.
    """

    rights: set[Right] = field(default_factory=set)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def may(self, action: str, place: str) -> bool:
        allowed = any(
            one.action == action and fnmatch.fnmatchcase(place, one.pattern.replace("[", "[[]"))
            for one in self.rights
        )
        if not allowed:
            self.refused.append((action, place))
        return allowed

    def may_list_all(self, bucket: str) -> bool:
        """Whether ListBucket has no condition: only then S3 says 404 of a missing key."""
        return Right(LIST, f"{bucket}/*") in self.rights


class _Guarded:
    def __init__(self, app: WsgiApp, role: Role) -> None:
        self._app = app
        self._role = role

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        bucket, _, key = unquote(environ["PATH_INFO"]).lstrip("/").partition("/")
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        method, place = environ["REQUEST_METHOD"], f"{bucket}/{key}"
        if method == "POST" and "delete" in query:
            return self._delete(environ, start_response, bucket)
        actions = _actions(method, key, environ)
        if actions == [LIST]:
            place = f"{bucket}/{query.get('prefix', [''])[0]}"
        if not all(self._role.may(action, place) for action in actions):
            return _answer(start_response, "403 Forbidden", _error("AccessDenied"), method)
        return self._hiding(environ, start_response, bucket)

    def _hiding(
        self, environ: dict[str, Any], start_response: Callable[..., Any], bucket: str
    ) -> Iterable[bytes]:
        """Answer; of a missing key 403, unless the whole bucket may be listed."""
        told: list[Any] = []
        content = list(self._app(environ, lambda *answer: told.append(answer)))
        method = environ["REQUEST_METHOD"]
        if told[-1][0].startswith("404") and not self._role.may_list_all(bucket):
            return _answer(start_response, "403 Forbidden", _error("AccessDenied"), method)
        start_response(*told[-1])
        return content

    def _delete(
        self, environ: dict[str, Any], start_response: Callable[..., Any], bucket: str
    ) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        keys = [
            str(one.text) for one in ElementTree.fromstring(body).iter() if re.search(r"(^|})Key$", one.tag)
        ]
        refused = [key for key in keys if not self._role.may(DELETE, f"{bucket}/{key}")]
        if not refused:
            environ["wsgi.input"] = io.BytesIO(body)
            return self._app(environ, start_response)
        errors = "".join(
            f"<Error><Key>{escape(key)}</Key><Code>AccessDenied</Code><Message>No.</Message></Error>"
            for key in refused
        )
        result = f'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{errors}</DeleteResult>'
        return _answer(start_response, "200 OK", result, "POST")


def _actions(method: str, key: str, environ: dict[str, Any]) -> list[str]:
    if method in {"GET", "HEAD"}:
        return [GET] if key else [LIST]
    if method == "DELETE":
        return [DELETE]
    return [PUT, GET] if "HTTP_IF_MATCH" in environ else [PUT]


def _error(code: str) -> str:
    return f"<Error><Code>{code}</Code><Message>Access Denied</Message></Error>"


def _answer(start_response: Callable[..., Any], status: str, text: str, method: str) -> Iterable[bytes]:
    content = b"" if method == "HEAD" else f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(content)))])
    return [content]


@contextlib.contextmanager
def limited(role: Role) -> Iterator[S3Server]:
    """Serve the same buckets as every other server of this process, within the rights of `role`."""
    with serving(lambda app: _Guarded(app, role)) as server:
        yield server
