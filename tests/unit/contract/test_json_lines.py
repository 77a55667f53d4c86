# SPDX-License-Identifier: Apache-2.0
"""The rules by which Airflow's worker and the job read lines."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.json_lines import (
    LONGEST_BLANK,
    MOST_LEVELS,
    JsonLineError,
    batch_request,
    is_blank,
    json_object,
)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"a": ', "the line is not JSON (Expecting value: line 1 column 6 (char 5))"),
        (b'{"a": 1} {}', "the line is not JSON (Extra data: line 1 column 9 (char 8))"),
        (b"", "the line is not JSON (Expecting value: line 1 column 1 (char 0))"),
        (b"7", "the line is JSON, but a number instead of an object"),
        (b"null\r\n", "the line is JSON, but null instead of an object"),
        (b'{"a": 1, "\\u0061": 2}', "an object in the line has the key 'a' twice"),
        (b'{"b": [{"c": 1, "c": 1}]}', "an object in the line has the key 'c' twice"),
        (b'{"a": "\xff"}', "the line is not JSON ('utf-8' codec can't decode byte 0xff in position 7: "),
        (b'{"a": "\xed\xa0\x80"}', "the line is not JSON ('utf-8' codec can't decode byte 0xed in position"),
        (b'{"\\ud800": 1}', "the line is not JSON ('utf-8' codec can't encode character '\\ud800'"),
        (b'{"a": "\\uDFFF"}', "the line is not JSON ('utf-8' codec can't encode character '\\udfff'"),
        (b"[" * 100_000, "the line is not JSON ("),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}', "the line is not JSON (Expecting value"),
    ],
)
def test_what_is_no_object_of_json_says_why(line: bytes, why: str) -> None:
    for read in (json_object, batch_request):
        with pytest.raises(JsonLineError) as caught:
            read(line)
        assert str(caught.value).startswith(why)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b' {"a": 1}\t\r\n', {"a": 1}),
        (b'\xef\xbb\xbf{"a": 1}\n', {"a": 1}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": "\\\\ud800"}', {"a": "\\ud800"}),
        (b'{"a": -0.0, "b": 1e308, "c": 1e-400}', {"a": -0.0, "b": 1e308, "c": 0.0}),
    ],
)
def test_objects_are_read(line: bytes, found: object) -> None:
    assert json_object(line) == batch_request(line) == found


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e309", "-1e309", "1" + "0" * 309 + ".0"]
)
def test_numbers_of_a_batch_line_are_finite(number: str) -> None:
    for line in (f'{{"a": {number}}}', f'{{"body": {{"a": [{number}]}}}}'):
        assert json_object(line.encode())
        with pytest.raises(JsonLineError, match=r"^the line is not JSON \("):
            batch_request(line.encode())


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_levels_of_a_batch_line_have_an_end(opening: str, closing: str) -> None:
    def nested(levels: int, after: str = "") -> bytes:
        return f'{{"x": {opening * levels}1{closing * levels}{after}}}'.encode()

    wide = ', "y": [' + "[], " * 300 + "[]]"
    assert batch_request(nested(MOST_LEVELS))
    assert batch_request(nested(MOST_LEVELS, wide))
    assert json_object(nested(MOST_LEVELS + 1))
    for after in ("", wide):
        with pytest.raises(JsonLineError, match="a field has more than 200 lists and objects in each other"):
            batch_request(nested(MOST_LEVELS + 1, after))


def test_long_white_space_is_a_row() -> None:
    blank = b" " * (LONGEST_BLANK - 2)
    assert is_blank(blank + b"\r\n")
    assert is_blank(b"\x0b\x0c\n")
    assert not is_blank(blank + b" \r\n")
    assert not is_blank(b"\xef\xbb\xbf\n")
