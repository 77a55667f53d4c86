# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.row_template import RowTemplate, RowTemplateError
from tests.support.approved import AssertSentences


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("no placeholder", {}, "no placeholder"),
        ("{row.name}", {"name": "Acme"}, "Acme"),
        ("a {row.a} b {row.b} a {row.a}", {"a": 1, "b": 2}, "a 1 b 2 a 1"),
        ("{row['any name']}", {"any name": "x"}, "x"),
        ('{row["it\'s"]}', {"it's": "x"}, "x"),
        ("{row['a}b{c']}", {"a}b{c": "x"}, "x"),
        ("{row.größe}", {"größe": 3}, "3"),
        ('{"a": {row.a}, "b": {}}', {"a": 1}, '{"a": 1, "b": {}}'),
        ("{{ ds }} {row.a} {% if x %}", {"a": 1}, "{{ ds }} 1 {% if x %}"),
        ("{{row.a}}", {"a": 1}, "{1}"),
        ("{'{name}'} {'{a b}'} {row.a}", {"a": 1}, "{name} {a b} 1"),
        ("{'name'} {'{a}{b}'} {''} {'{'}", {}, "{'name'} {'{a}{b}'} {''} {'{'}"),
        ("{} {0} {name} {row} {rows.a} %s $x", {}, "{} {0} {name} {row} {rows.a} %s $x"),
        ("{row.a.b} {row.a!r} {row.a:>5} {row[0]} {row[a]}", {"a": 1}, None),
    ],
)
def test_only_row_placeholders_are_replaced(text: str, row: dict[str, Any], expected: str | None) -> None:
    assert RowTemplate(text).render(row) == (text if expected is None else expected)


@pytest.mark.parametrize("value", ["{row.b}", "{row['b b']}", "{{ ds }}", "\\1 \\g<0>", "%(b)s", "}{row.a}{"])
@given(st.lists(st.tuples(st.text(), st.sampled_from(["a", "b b", "ü"]))), st.text())
def test_rendering_is_plain_concatenation(value: str, pieces: list[tuple[str, str]], end: str) -> None:
    """Values are never scanned again."""

    # Brackets in the surrounding text could form placeholders; the tests above have those.
    def plain(text: str) -> str:
        return text.replace("{", "(").replace("}", ")")

    values = {"a": value, "b b": "}{", "ü": "v"}
    text = "".join(f"{plain(literal)}{{row['{name}']}}" for literal, name in pieces) + plain(end)
    expected = "".join(plain(literal) + values[name] for literal, name in pieces) + plain(end)
    assert RowTemplate(text).render(values) == expected
    assert set(RowTemplate(text).columns) == {name for _, name in pieces}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (1.5, "1.5"),
        (decimal.Decimal("1.10"), "1.10"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc), "2026-01-02T03:04:05+00:00"),
        (datetime.time(3, 4), "03:04:00"),
        ({"a": "ü", "when": datetime.date(2026, 1, 2)}, '{"a": "ü", "when": "2026-01-02"}'),
        ([1, None], "[1, null]"),
        ("", ""),
    ],
)
def test_values_as_prompt_text(value: Any, text: str) -> None:
    assert RowTemplate("{row.v}").render({"v": value}) == text


def test_unusable_values_have_a_reason(assert_sentences: AssertSentences) -> None:
    assert_sentences(RowTemplate("{row.v}").render, RowTemplateError)


def test_columns_once_each_in_order_of_appearance() -> None:
    assert RowTemplate("{row.b}{row.a}{row['b']}").columns == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{Row.a} b", "{Row.a}"),
        ("{rows['a']} b", "{rows['a']}"),
        ("{row['a} b", "{row['a}"),
        ("Name {row.a and b", "{row.a"),
        ("Name {row['a'] and b", "{row['a']"),
        ("Name {row.a\nand {row.b}", "{row.a"),
    ],
)
def test_placeholders_that_are_misspelt_or_open_are_found(text: str, found: str) -> None:
    assert RowTemplate(text).lookalikes == [found]


def test_only_lookalikes_of_placeholders_are_found() -> None:
    template = RowTemplate(
        "{row.a} { row.b } {row.c.d} {{row.e}} {row[0]} {arrow.f} {\"row\": 1} {'{row.g h}'}"
    )
    assert template.lookalikes == ["{ row.b }", "{row.c.d}", "{row[0]}"]
