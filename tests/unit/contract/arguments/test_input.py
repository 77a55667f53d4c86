# SPDX-License-Identifier: Apache-2.0
"""Where the rows come from: options that no CSV file can have are refused."""

from __future__ import annotations

from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error


def test_impossible_csv_options_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda options: spec_error(csv_options=options))


def test_csv_options_are_as_python_names_them() -> None:
    options = spec(csv_options={"encoding": "Latin1", "header": ["a", "b"]}).csv_options
    assert options is not None
    assert (options.encoding, options.header, options.delimiter) == ("iso8859-1", ("a", "b"), None)
