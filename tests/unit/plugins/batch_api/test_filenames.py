# SPDX-License-Identifier: Apache-2.0
"""Names of files are for display: no folders, no control characters, not long."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.plugins.batch_api.filenames import LONGEST_NAME, shown_name


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("night.jsonl", "night.jsonl"),
        ("Straße 夜.jsonl", "Straße 夜.jsonl"),
        ("../../etc/passwd.jsonl", "passwd.jsonl"),
        ("/abs/x.jsonl", "x.jsonl"),
        ("C:\\temp\\x.jsonl", "x.jsonl"),
        ("..", ".."),
        ("a/", ""),
        ("", ""),
        ("a\x00b\r\nc\x7f.jsonl", "abc.jsonl"),
        ("a%22b%0D%0Ac.jsonl", 'a"bc.jsonl'),
        ("%2e%2e%2fx.jsonl", "%2e%2e%2fx.jsonl"),
        ("a\u202elnosj.exe.jsonl", "alnosj.exe.jsonl"),
        ("  x.jsonl  ", "x.jsonl"),
    ],
)
def test_names_are_cleaned(given: str, shown: str) -> None:
    assert shown_name(given.encode()) == shown


def test_a_name_in_another_encoding_is_shown_in_part() -> None:
    assert shown_name(b"\xff\xfestra\xdfe.jsonl") == "��stra�e.jsonl"


def test_a_long_name_keeps_its_suffix() -> None:
    assert shown_name(b"x" * 400 + b".jsonl") == "x" * (LONGEST_NAME - 6) + ".jsonl"
    assert shown_name(b"x." + b"y" * 400) == "x." + "y" * (LONGEST_NAME - 2)
