# SPDX-License-Identifier: Apache-2.0
"""Where the rows come from: options that no CSV file can have are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.specs import spec, spec_error


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"delimiter": "||"}, "csv_options.delimiter: it must be one ASCII character and neither a quote"),
        ({"delimiter": '"'}, "csv_options.delimiter: it must be one ASCII character and neither a quote"),
        ({"delimiter": "§"}, "csv_options.delimiter: it must be one ASCII character"),
        ({"encoding": "latin9000"}, "csv_options.encoding: Python has no text encoding 'latin9000'; common"),
        ({"encoding": "base64"}, "csv_options.encoding: Python has no text encoding 'base64'"),
        ({"header": ["a", "a"]}, "csv_options.header: it must name each column, each differently"),
        ({"header": []}, "csv_options.header: it must name each column, each"),
        ({"quote": "'"}, "csv_options.quote: there is no such field"),
        (";", "csv_options: "),
    ],
)
def test_impossible_csv_options_are_refused(options: Any, sentence: str) -> None:
    assert spec_error(csv_options=options).startswith(sentence)


def test_csv_options_are_as_python_names_them() -> None:
    options = spec(csv_options={"encoding": "Latin1", "header": ["a", "b"]}).csv_options
    assert options is not None
    assert (options.encoding, options.header, options.delimiter) == ("iso8859-1", ("a", "b"), None)
