# SPDX-License-Identifier: Apache-2.0
"""The check of a whole OpenAI batch file on Airflow's worker, before any cluster is asked.

One pass, whose memory does not grow with the file but for its ids. What it lets through, the job takes as a
whole, and each line as a request to the batch's endpoint and model; parameters in a body are the job's to
check, which gives their line an error. Messages quote nothing of a line, since they also stand in logs.
"""

from __future__ import annotations

import heapq
import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, BinaryIO, NamedTuple

from airflow_provider_raybatch.contract.arguments.openai_batch import (
    CUSTOM_ID,
    EMBEDDINGS,
    ENDPOINTS,
    LINE_COLUMNS,
    BatchError,
)
from airflow_provider_raybatch.contract.json_lines import (
    BYTE_ORDER_MARK,
    LONGEST_LINE,
    JsonLineError,
    batch_request,
    is_blank,
)
from airflow_provider_raybatch.contract.text import count_of

LONGEST_SERVED_LINE = 16 * 1024 * 1024
"""Bytes of a line that a served model takes by default, since the check of a line may take 30 times as much
memory."""
MOST_ERRORS = 100
"""Errors of a file that are kept; the check stops at so many broken lines."""
_SURELY_SHORT = 4 * 1024 * 1024
"""Bytes of a line that a server reads whatever is in it."""
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.?+[^"\\]*+)*+("|\Z)(?P<colon>\s*+:)?|[][{}]', re.DOTALL)
_MOST_TOKENS = 1024 * 1024
"""Texts and brackets of a longer line in which its model is looked for; they take a second."""
_FIRST_LINES = 10_000
_BLOCK = 1024 * 1024
_URLS = frozenset(chain.from_iterable(ENDPOINTS.values()))
_KINDS = {list: "a list", dict: "an object", bool: "a boolean", str: "a text", type(None): "null"}
_DIGEST = 16
"""Bytes, so many that two texts never share them by chance or by intent."""


@dataclass(frozen=True)
class FileLimits:
    """What a file may have at most; ``None`` for no limit.

    :param max_requests: lines that are not blank.
    :param max_bytes: of the whole file.
    :param max_inputs: texts of all lines, for embeddings.
    :param max_line_bytes: of a line; the job takes no more than the default. A line of lists in lists takes
        some 30 times as much memory while it is read.
    """

    max_requests: int | None = None
    max_bytes: int | None = None
    max_inputs: int | None = None
    max_line_bytes: int = LONGEST_LINE

    def within(self, others: FileLimits) -> FileLimits:
        """The stricter one of each limit."""
        own, theirs = vars(self), vars(others)
        given = {name: [one for one in (own[name], theirs[name]) if one is not None] for name in own}
        return FileLimits(**{name: min(found) for name, found in given.items() if found})


STRICT_LIMITS = FileLimits(max_requests=50_000, max_bytes=200_000_000, max_inputs=50_000)
"""OpenAI's."""


@dataclass(frozen=True)
class CheckedFile:
    """What the check of a file found.

    :param lines: requests up to where it stopped; with no errors, those of the file.
    :param model: the one that lines name; ``None`` where none does.
    :param errors: the first of the file, by line; those of the whole file come before them.
    """

    lines: int
    model: str | None
    errors: list[BatchError]


def validate(
    content: BinaryIO, *, endpoint: str, model: str | None, limits: FileLimits | None = None
) -> CheckedFile:
    """Check a file from the current position of `content` on.

    :param content: buffered.
    :param endpoint: of the batch, which each line must have as its `url`.
    :param model: of the batch, which each body must name; ``None`` for the one that a line names first.
    :param limits: by default those of the job alone.
    """
    limits = limits or FileLimits()
    check, longest = _FileCheck(endpoint, model, limits), limits.max_line_bytes
    while (line := content.readline(longest + 1)) and check.goes_on_after(line):
        pass
    return check.ended(not line)


def check_start(content: BinaryIO, *, endpoint: str, most: int = LONGEST_SERVED_LINE) -> CheckedFile:
    """Check a file up to the first line that names a model, in bounded time and memory, for a server.

    Of a line that is cut or has more than 4 MiB only the model is looked up; the job's check reads it.

    :param content: buffered; read from its current position on.
    :param endpoint: of the batch.
    :param most: bytes that are read, in at most 10,000 lines.
    :returns: a model, or at least one error.
    """
    check = _FileCheck(endpoint, None, FileLimits())
    lines, left, at_end = 0, most, False
    while check.model is None and left > 0 and lines < _FIRST_LINES:
        line = content.readline(left)
        at_end = not line
        lines, left = lines + 1, left - len(line)
        is_cut = not left and not line.endswith(b"\n")
        if at_end or not check.goes_on_after(line, whole=not is_cut and len(line) <= _SURELY_SHORT):
            break
    found = check.ended(at_end)
    if found.model is None and not found.errors:
        read = count_of(most - left, "byte")
        why = f"The first {read} of the file name no model; write body.model before longer fields."
        error = BatchError(code="missing_required_parameter", message=why, param="body.model")
        return replace(found, errors=[error])
    return found


class _Problem(NamedTuple):
    code: str
    message: str
    param: str | None = None


_NOT_JSON = _Problem("invalid_json_line", "This line is not parseable as valid JSON.")
_OTHER_FILES = (
    (re.compile(rb"\x1f\x8b"), "is compressed by gzip; unpack it first"),
    (re.compile(rb"\xff\xfe|\xfe\xff|[^\0]?\0"), "is UTF-16 text; save it as UTF-8"),
    (
        re.compile(rb"(?!(?:\xef\xbb\xbf)?\s*\{)"),
        "is not JSON Lines; write one JSON object a line, neither CSV nor one list",
    ),
)
"""How the first request begins in a file that has none, and what is said of the file."""


class SeenIds:
    """The ids of the lines of a file, as digests; about 22 bytes a line.

    They lie in 256 groups by their first byte. Only one group at a time becomes Python objects, which need
    five times as much.
    """

    def __init__(self) -> None:
        self._digests = [bytearray() for _ in range(256)]
        self._lines = [array("I") for _ in range(256)]

    def add(self, text: str, line: int) -> None:
        """Note the id of a line; lines come in ascending order."""
        digest = blake2b(text.encode(), digest_size=_DIGEST).digest()
        group = digest[0]
        self._digests[group] += digest
        self._lines[group].append(line)

    def repeated(self) -> Iterator[tuple[int, int]]:
        """Each line whose id a line before has, and the first line that has it; in no order."""
        for digests, lines in zip(self._digests, self._lines, strict=True):
            whole = bytes(digests)
            keys = [whole[start : start + _DIGEST] for start in range(0, len(whole), _DIGEST)]
            if len(set(keys)) == len(keys):
                continue
            first: dict[bytes, int] = {}
            for key, line in zip(keys, lines, strict=True):
                if first.setdefault(key, line) != line:
                    yield line, first[key]


class _FileCheck:
    """The state of one pass."""

    def __init__(self, endpoint: str, model: str | None, limits: FileLimits) -> None:
        self.model = model
        self._endpoint = endpoint
        self._limits = limits
        self._requests = self._inputs = self._bytes = self._number = 0
        self._ids = SeenIds()
        self._errors: list[BatchError] = []

    def goes_on_after(self, line: bytes, *, whole: bool = True) -> bool:
        """Check the next line.

        :param whole: else only the model of the batch is taken from it.
        :returns: false if the file is of another kind, a limit is passed, or :data:`MOST_ERRORS` lines are
            broken.
        """
        limits = self._limits
        self._number = number = self._number + 1
        self._bytes += len(line)
        if limits.max_bytes is not None and self._bytes > limits.max_bytes:
            return self._passed("file_too_large", "has", limits.max_bytes, "byte")
        if len(line) > limits.max_line_bytes:
            most = count_of(limits.max_line_bytes, "byte")
            self._fault(_Problem("invalid_json_line", f"This line has more than {most}; shorten it."), number)
            return False
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if is_blank(line):
            return True
        self._requests += 1
        if self._requests == 1 and (what := next((of for sign, of in _OTHER_FILES if sign.match(line)), "")):
            self._fault(_Problem("invalid_json_line", f"The file {what}."))
            return False
        if limits.max_requests is not None and self._requests > limits.max_requests:
            return self._passed("too_many_tasks", "has", limits.max_requests, "request")
        if not whole:
            self.model = self.model or _model_before_the_end(line)
        elif (problem := self._problem(line, number)) is not None:
            self._fault(problem, number)
        if limits.max_inputs is not None and self._inputs > limits.max_inputs:
            return self._passed("too_many_tasks", "asks for", limits.max_inputs, "text")
        return len(self._errors) < MOST_ERRORS

    def _passed(self, code: str, has: str, most: int, noun: str) -> bool:
        self._fault(_Problem(code, f"The file {has} more than {count_of(most, noun)}; split it."))
        return False

    def ended(self, at_end: bool) -> CheckedFile:
        """What was found.

        :param at_end: whether this was the whole file.
        """
        if at_end and not self._requests:
            self._fault(_Problem("empty_file", "The file has no requests; write one JSON object a line."))
        return CheckedFile(self._requests, self.model, self._first_errors())

    def _first_errors(self) -> list[BatchError]:
        """The first errors of what was read, ids that are there twice among them."""
        repeated = (
            BatchError(
                code="duplicate_custom_id",
                message=f"Line {first} has the same custom_id; each line needs one of its own.",
                param=CUSTOM_ID,
                line=line,
            )
            for line, first in self._ids.repeated()
        )
        return heapq.nsmallest(MOST_ERRORS, chain(self._errors, repeated), key=lambda one: one.line or 0)

    def _fault(self, problem: _Problem, line: int | None = None) -> None:
        self._errors.append(
            BatchError(code=problem.code, message=problem.message, param=problem.param, line=line)
        )

    def _problem(self, line: bytes, number: int) -> _Problem | None:
        try:
            request = batch_request(line)
        except JsonLineError as error:
            if not error.unquoted:
                return _NOT_JSON
            return _Problem("invalid_json_line", f"This line can't be used: {error.unquoted}.")
        custom_id = request.get(CUSTOM_ID)
        if isinstance(custom_id, str) and custom_id:
            self._ids.add(custom_id, number)
        if self.model is None:
            self.model = _model_in(request.get("body"))
        return self._of_fields(request)

    def _of_fields(self, request: dict[str, Any]) -> _Problem | None:
        for name in LINE_COLUMNS:
            value = request.get(name)
            if value is None or (name != "body" and not (isinstance(value, str) and value)):
                return _missing(name, value)
        if request["method"] != "POST":
            return _Problem("invalid_method", "'method' must be 'POST'.", "method")
        if (url := request["url"]) != self._endpoint:
            if url in _URLS:
                return _Problem("url_mismatch", f"'url' must be {self._endpoint!r}, as of the batch.", "url")
            return _Problem("invalid_url", f"'url' is not an endpoint; it must be {self._endpoint!r}.", "url")
        body = request["body"]
        if not isinstance(body, dict):
            return _Problem("invalid_value", f"'body' must be an object, not {_kind(body)}.", "body")
        return self._of_body(body)

    def _of_body(self, body: dict[str, Any]) -> _Problem | None:
        model = body.get("model")
        if model is None:
            return _missing("body.model", None)
        if model != self.model:
            return _Problem(
                "model_mismatch", "'body.model' is not the model of the batch; a file has one.", "body.model"
            )
        if self._endpoint == EMBEDDINGS:
            self._inputs += _texts_in(body.get("input"))
        return None


def _model_before_the_end(line: bytes) -> str | None:
    """The model in the body of a line, which may be cut; none of its other values comes into memory."""
    level, key, in_body = 0, b"", False
    for token in islice(_TOKEN.finditer(line), _MOST_TOKENS):
        start, end = token.span()
        match line[start : start + 1]:
            case b"{" | b"[" as bracket:
                level += 1
                in_body = in_body or (level, key, bracket) == (2, b'"body"', b"{")
            case b"]" | b"}":
                level -= 1
                in_body = in_body and level > 1
            case _ if level > 2 or not (level == 1 or in_body):
                pass
            case _ if token["colon"] is not None:
                key = line[start : token.start("colon")]
            case _ if in_body and key == b'"model"':
                try:
                    return _model_in({"model": json.loads(line[start:end])})
                except ValueError:
                    return None
    return None


def _model_in(body: Any) -> str | None:
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) and model else None


def _missing(name: str, value: Any) -> _Problem:
    why = f"Missing required parameter: '{name}'."
    if value is not None:
        why = f"'{name}' must be a text that is not empty, not {_kind(value)}."
    return _Problem("missing_required_parameter", why, name)


def _kind(value: Any) -> str:
    return "an empty text" if value == "" else _KINDS.get(type(value), "a number")


def _texts_in(asked: Any) -> int:
    """Texts of a line; a list of tokens is one."""
    is_list = isinstance(asked, list) and not all(isinstance(one, int) for one in asked)
    return len(asked) if is_list else 1
