# SPDX-License-Identifier: Apache-2.0
"""The check of a batch file says which lines make it unfit, by OpenAI's codes."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.store import validation
from airflow_provider_raybatch.batch_api.store.validation import (
    LONGEST_SERVED_LINE,
    MOST_ERRORS,
    STRICT_LIMITS,
    CheckedFile,
    FileLimits,
    check_start,
    validate,
)
from airflow_provider_raybatch.contract.arguments.openai_batch import CHAT, COMPLETIONS, EMBEDDINGS
from airflow_provider_raybatch.contract.json_lines import LONGEST_LINE
from airflow_provider_raybatch.job.input import text_rows
from tests.support.approved import AssertSentences
from tests.support.openai_lines import chat, completion, line

NO_LINES = "The file is not JSON Lines; write one JSON object a line, neither CSV nor one list."
Found = list[tuple[str, "str | None", "int | None"]]


def file_of(*lines: Any, end: bytes = b"\n") -> bytes:
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + end for one in lines)


def checked(content: bytes, limits: FileLimits | None = None, **fields: Any) -> CheckedFile:
    return validate(io.BytesIO(content), **{"endpoint": CHAT, "model": "echo", "limits": limits, **fields})


def found(content: bytes, limits: FileLimits | None = None, **fields: Any) -> Found:
    return [(one.code, one.param, one.line) for one in checked(content, limits, **fields).errors]


def good(number: int = 0, **fields: Any) -> dict[str, Any]:
    return line(f"request-{number}", chat(), **fields)


def test_a_good_file_has_no_errors() -> None:
    content = file_of(good(1), good(2, other=[1]), {**good(3), "body": {"model": "echo", "max_tokens": -1}})
    assert checked(content) == CheckedFile(3, "echo", [])


@pytest.mark.parametrize(
    ("broken", "code", "param"),
    [
        (b'{"custom_id": "torn", "method"', "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b'{"custom_id": "\xff"}', "invalid_json_line", None),
        (b'{"custom_id": "a", "custom_id": "a"}', "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (b'{"body": NaN}', "invalid_json_line", None),
        (b" " * 40, "invalid_json_line", None),
        ({**good(), "custom_id": None}, "missing_required_parameter", "custom_id"),
        ({**good(), "custom_id": 7}, "missing_required_parameter", "custom_id"),
        ({**good(), "custom_id": ""}, "missing_required_parameter", "custom_id"),
        ({"custom_id": "a", "url": CHAT, "body": chat()}, "missing_required_parameter", "method"),
        ({"custom_id": "a", "method": "POST", "body": chat()}, "missing_required_parameter", "url"),
        ({**good(), "url": [CHAT]}, "missing_required_parameter", "url"),
        ({"custom_id": "a", "method": "POST", "url": CHAT}, "missing_required_parameter", "body"),
        ({**good(), "body": {"messages": []}}, "missing_required_parameter", "body.model"),
        ({**good(), "method": "GET"}, "invalid_method", "method"),
        ({**good(), "method": "post"}, "invalid_method", "method"),
        ({**good(), "url": COMPLETIONS}, "url_mismatch", "url"),
        ({**good(), "url": "/v1/nothing"}, "invalid_url", "url"),
        ({**good(), "body": [chat()]}, "invalid_value", "body"),
        ({**good(), "body": chat(model="other")}, "model_mismatch", "body.model"),
        ({**good(), "body": chat(model=5)}, "model_mismatch", "body.model"),
    ],
)
def test_a_broken_line_is_named(broken: Any, code: str, param: str | None) -> None:
    content = file_of(good(1), b"", broken, good(2))
    assert found(content) == [(code, param, 3)]
    assert found(content, model=None) == [(code, param, 3)]
    assert checked(content).lines == 3


def test_a_line_that_is_not_json_has_the_words_of_openai() -> None:
    [error] = checked(file_of(b"{")).errors
    assert error.message == "This line is not parseable as valid JSON."


def test_json_that_is_no_request_has_another_reason(assert_sentences: AssertSentences) -> None:
    def said(value: str) -> str:
        [error] = checked(b'{"body": %s}\n' % value.encode()).errors
        assert (error.code, error.line) == ("invalid_json_line", 1)
        return error.message

    assert_sentences(said)


def test_a_line_that_is_no_object_says_so() -> None:
    [_, error] = checked(file_of({}, [1])).errors
    assert error.message == "This line can't be used: the line is JSON, but a list instead of an object."


def test_ids_that_are_there_twice_name_their_first_line() -> None:
    content = file_of(
        good(1), good(2), b"{", {**good(1), "url": "/v1/x"}, good(1), {**good(2), "method": "GET"}
    )
    assert found(content) == [
        ("invalid_json_line", None, 3),
        ("invalid_url", "url", 4),
        ("duplicate_custom_id", "custom_id", 4),
        ("duplicate_custom_id", "custom_id", 5),
        ("invalid_method", "method", 6),
        ("duplicate_custom_id", "custom_id", 6),
    ]
    messages = [one.message for one in checked(content).errors if one.code == "duplicate_custom_id"]
    assert [message.partition(" has")[0] for message in messages] == ["Line 1", "Line 1", "Line 2"]


@pytest.mark.parametrize("content", [b"", b"\n \r\n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
def test_a_file_without_requests_is_empty(content: bytes) -> None:
    assert found(content) == [("empty_file", None, None)]


def test_lines_end_at_line_feeds_alone() -> None:
    first, second = (json.dumps(good(number)).encode() for number in (1, 2))
    assert found(b"\xef\xbb\xbf" + first + b"\r\n\r\n" + b"\xef\xbb\xbf" + second + b"\n\n{") == [
        ("invalid_json_line", None, 5)
    ]
    assert found(first + b"\r" + second) == [("invalid_json_line", None, 1)]
    assert found(first.replace(b": ", b":\r") + b"\n\r" + second) == []


@pytest.mark.parametrize("start", [b"", b"\n\n"])
@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (lambda text: text.encode("utf-16"), "The file is UTF-16 text; save it as UTF-8."),
        (lambda text: text.encode("utf-16-be"), "The file is UTF-16 text; save it as UTF-8."),
        (lambda text: text.encode("utf-16-le"), "The file is UTF-16 text; save it as UTF-8."),
        (lambda text: gzip.compress(text.encode()), "The file is compressed by gzip; unpack it first."),
        (lambda text: b"custom_id,method,url,body\n1,POST,/v1,x\n", NO_LINES),
        (lambda text: json.dumps(list(map(json.loads, text.split("\n")[:-1])), indent=1).encode(), NO_LINES),
        (lambda text: b"PK\x03\x04\x14\0\x06\0" + text.encode(), NO_LINES),
    ],
)
def test_a_file_that_is_no_json_lines_has_one_error(written: Any, sentence: str, start: bytes) -> None:
    """Each of its lines would be an error of its own."""
    content = start + written(file_of(*map(good, range(9))).decode())
    for errors in (checked(content).errors, check_start(io.BytesIO(content), endpoint=CHAT).errors):
        assert [(one.code, one.line, one.message) for one in errors] == [
            ("invalid_json_line", None, sentence)
        ]


def test_the_first_model_of_a_file_is_that_of_its_lines() -> None:
    lines = [{**good(number), "body": chat(model=name)} for number, name in enumerate(["", "a", "b", "a"])]
    found_ = checked(file_of(*lines), model=None)
    assert found_.model == "a"
    assert [(one.code, one.line) for one in found_.errors] == [("model_mismatch", 1), ("model_mismatch", 3)]


def test_more_requests_than_the_limit_are_refused() -> None:
    content = file_of(*(good(number) for number in range(4)))
    assert found(content, FileLimits(max_requests=4)) == []
    assert found(content + file_of(good(9)), FileLimits(max_requests=4)) == [("too_many_tasks", None, None)]
    [error] = checked(content, FileLimits(max_requests=3)).errors
    assert error.message == "The file has more than 3 requests; split it."


def test_blank_lines_are_no_requests() -> None:
    content = file_of(b"", good(1), b"  ", good(2))
    assert checked(content, FileLimits(max_requests=2)) == CheckedFile(2, "echo", [])


def test_strict_limits_are_those_of_openai() -> None:
    lines = b"".join(
        b'{"custom_id":"%d","method":"POST","url":"/v1/chat/completions","body":{"model":"echo"}}\n' % number
        for number in range(50_001)
    )
    assert found(lines, STRICT_LIMITS) == [("too_many_tasks", None, None)]
    assert found(lines[: lines.rindex(b"\n", 0, -1) + 1], STRICT_LIMITS) == []
    assert STRICT_LIMITS.max_bytes == 200_000_000


def test_more_bytes_than_the_limit_are_refused() -> None:
    content = file_of(good(1), good(2))
    assert found(content, FileLimits(max_bytes=len(content))) == []
    assert found(content, FileLimits(max_bytes=len(content) - 1)) == [("file_too_large", None, None)]


def test_a_line_longer_than_the_job_takes_ends_the_check() -> None:
    content = file_of(good(1))
    limits = FileLimits(max_line_bytes=len(content))
    assert found(content + file_of(good(2)), limits) == []
    assert found(content + file_of(good(10), b"{"), limits) == [("invalid_json_line", None, 2)]
    assert FileLimits().max_line_bytes == LONGEST_LINE == text_rows.LONGEST_ROW


@pytest.mark.parametrize(
    ("asked", "texts"),
    [("a", 1), (["a"], 1), (["a", "b", "c"], 3), ([1, 2, 3], 1), ([[1], [2]], 2), (None, 1)],
)
def test_texts_of_embeddings_are_counted(asked: Any, texts: int) -> None:
    content = file_of(line("a", {"model": "echo", "input": asked}, EMBEDDINGS))
    assert found(content, FileLimits(max_inputs=texts), endpoint=EMBEDDINGS) == []
    more = found(content, FileLimits(max_inputs=texts - 1), endpoint=EMBEDDINGS)
    assert more == [("too_many_tasks", None, None)]


def test_texts_of_chats_are_not_counted() -> None:
    content = file_of(line("a", completion(input=["a", "b"]), COMPLETIONS))
    assert found(content, FileLimits(max_inputs=0), endpoint=COMPLETIONS) == []


def test_the_first_errors_are_kept() -> None:
    broken = file_of(*[b"{"] * (MOST_ERRORS + 50))
    assert found(broken) == [("invalid_json_line", None, number) for number in range(1, MOST_ERRORS + 1)]
    twins = file_of(*[good()] * (MOST_ERRORS + 50), b"{")
    assert found(twins) == [("duplicate_custom_id", "custom_id", at) for at in range(2, MOST_ERRORS + 2)]


def test_messages_quote_nothing_of_a_line() -> None:
    secret = "s3cr3t"
    broken: list[Any] = [
        b'{"s3cr3t": ',
        b'{"s3cr3t": 1, "s3cr3t": 2}',
        {**good(), "custom_id": [secret]},
        {**good(), "method": secret},
        {**good(), "url": f"/v1/{secret}"},
        {**good(), "body": secret},
        {**good(), "body": chat(model=secret)},
        {**good(), "custom_id": secret},
        {**good(), "custom_id": secret},
    ]
    errors = checked(file_of(*broken)).errors
    assert len(errors) >= 8
    assert secret not in repr(errors)


def test_memory_does_not_grow_with_the_file() -> None:
    class Lines(io.RawIOBase):
        """A file of lines of 100,000 bytes, which is nowhere as a whole."""

        def __init__(self, lines: int) -> None:
            self.left, self.rest = iter(range(lines)), b""

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            if not self.rest and (number := next(self.left, None)) is not None:
                self.rest = file_of(line(f"{number}", chat("x" * 100_000)))
            size = min(len(buffer), len(self.rest))
            buffer[:size], self.rest = self.rest[:size], self.rest[size:]
            return size

    stream: Any = io.BufferedReader(Lines(300))
    tracemalloc.start()
    try:
        assert validate(stream, endpoint=CHAT, model="echo").lines == 300
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4_000_000


class TestStart:
    def test_the_first_line_which_names_a_model_ends_it(self) -> None:
        lines = [b"", b"{", {**good(), "body": chat(model=5)}, {**good(), "body": chat(model="a")}]
        content = io.BytesIO(b"\xef\xbb\xbf" + file_of(*lines))
        read = len(content.getvalue())
        content = io.BytesIO(content.getvalue() + file_of(good()))
        assert check_start(content, endpoint=CHAT).model == "a"
        assert content.tell() == read

    @pytest.mark.parametrize(
        ("content", "code"),
        [
            (b"", "empty_file"),
            (b"\n\n", "empty_file"),
            (b"{", "invalid_json_line"),
            (file_of({**good(), "body": {}}), "missing_required_parameter"),
            (file_of({**good(), "body": "echo"}), "invalid_value"),
        ],
    )
    def test_a_file_without_a_request_has_its_errors(self, content: bytes, code: str) -> None:
        start = check_start(io.BytesIO(content), endpoint=CHAT)
        assert (start.model, start.errors) == (None, checked(content, model=None).errors)
        assert start.errors[0].code == code

    def test_a_line_for_another_endpoint_names_a_model_too(self) -> None:
        start = check_start(io.BytesIO(file_of(good())), endpoint=EMBEDDINGS)
        assert (start.model, [one.code for one in start.errors]) == ("echo", ["url_mismatch"])

    def test_a_last_line_needs_no_line_feed(self) -> None:
        assert check_start(io.BytesIO(file_of(good(), end=b"")), endpoint=CHAT) == CheckedFile(1, "echo", [])

    @pytest.mark.parametrize("before", [b"{\n" * 50, b"\n" * 100, b"x" * 100 + b"\n"])
    def test_no_more_is_read_than_the_bound(self, before: bytes) -> None:
        content = io.BytesIO(before + file_of(good()))
        start = check_start(content, endpoint=CHAT, most=100)
        assert (content.tell(), start.model) == (100, None)
        assert start.errors

    def test_blank_lines_without_end_are_left(self) -> None:
        content = io.BytesIO(b"\n" * 100_000)
        [error] = check_start(content, endpoint=CHAT).errors
        assert content.tell() < 20_000
        assert (error.code, error.param) == ("missing_required_parameter", "body.model")

    def test_a_first_line_may_have_a_picture_of_some_megabytes(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 12_000_000}"}}
        content = file_of(line("picture", chat([{"type": "text", "text": "what?"}, picture])))
        assert check_start(io.BytesIO(content), endpoint=CHAT) == CheckedFile(1, "echo", [])
        limits = FileLimits(max_line_bytes=LONGEST_SERVED_LINE)
        assert checked(content, limits) == CheckedFile(1, "echo", [])

    @pytest.mark.parametrize("megabytes", [10, 17])
    @pytest.mark.parametrize("value", ["[],", '"\\"",', '{"model": "x"},', "a"])
    def test_a_long_first_line_names_its_model(
        self, value: str, megabytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Cut or not, of many values or of one, and valid or not: the job's check says that."""
        monkeypatch.setattr(validation, "_MOST_TOKENS", 10_000)
        many = value * (megabytes * 2**20 // len(value))
        names = '"x": {"model": "y"}, "model": "\\u00e4", "messages"'
        for start, model in ((names, "ä"), ('"model": ["b"], "messages"', None)):
            content = f'{{"model": "z", "body": {{{start}: [{many}'.encode()
            tracemalloc.start()
            try:
                found_ = check_start(io.BytesIO(content), endpoint=CHAT)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert (found_.model, most < 3 * len(content)) == (model, True)
        [error] = found_.errors
        read = f"The first {min(len(content), LONGEST_SERVED_LINE):,} bytes of the file"
        assert error.message == f"{read} name no model; write body.model before longer fields."

    def test_a_later_line_may_name_the_model(self) -> None:
        long = b'{"body": {"messages": "%s"}}' % (b"x" * 5_000_000)
        assert check_start(io.BytesIO(file_of(long, good())), endpoint=CHAT) == CheckedFile(2, "echo", [])

    def test_a_long_line_of_another_kind_is_still_told(self) -> None:
        content = b"[" + b",".join([file_of(good(), end=b"")] * 200_000)
        [error] = check_start(io.BytesIO(content), endpoint=CHAT).errors
        assert error.message == NO_LINES
