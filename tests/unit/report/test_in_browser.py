# SPDX-License-Identifier: Apache-2.0
"""Pages of reports in a real browser: nothing runs, nothing is asked for, nothing runs out of the window."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.report.page import report_page
from airflow_provider_raybatch.report.rendering import environment
from tests.support.browser import Chromium
from tests.support.reports import GALLERY

WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
NARROW = 400


@pytest.mark.parametrize("name", GALLERY)
def test_page_is_static_and_fits_the_window(browser: Chromium, tmp_path: Path, name: str) -> None:
    file = tmp_path / "report.html"
    file.write_bytes(report_page(GALLERY[name]()).encode())
    with browser.visitor() as visitor:
        visitor.open_file(file)
        assert visitor.page.inner_text("h1")
        assert visitor.page.evaluate(WIDER) == 0
        visitor.page.set_viewport_size({"width": NARROW, "height": 800})
        assert visitor.page.evaluate(WIDER) == 0
        visitor.assert_static()


WORDS = """() => {
  const broken = [], range = document.createRange();
  for (const cell of document.querySelectorAll("td, th")) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode())
      for (const word of text.data.matchAll(/[^ \\n]{1,9}(?![^ \\n])(?<![^ \\n]{10})/g)) {
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(one => one.top)).size > 1) broken.push(word[0]);
      }
  }
  return broken;
}"""


PAGE = """{% extends "page.jinja" %}{% from "parts.jinja" import table, theirs %}{% block main %}
{% call table("Batches", heads) %}
<tr><th scope="row">2026-11-27</th><td>{{ theirs("batch_" ~ "a" * 60) }}</td><td>completed</td>
<td>{{ theirs("699008") }}</td>
{% for one in "wxyz" %}<td>{{ theirs("llama " ~ "b" * 200) }}</td>{% endfor %}</tr>
{% endcall %}{% endblock %}"""


@pytest.mark.parametrize("width", [NARROW, 900])
def test_short_words_of_a_table_are_whole(browser: Chromium, tmp_path: Path, width: int) -> None:
    heads = ["Created", "Batch", "State", "Model", *"wxyz"]
    file = tmp_path / "page.html"
    file.write_text(environment().from_string(PAGE).render(title="t", heads=heads), "utf-8")
    with browser.visitor(width=width) as visitor:
        visitor.open_file(file)
        assert visitor.page.evaluate(WIDER) == 0
        assert visitor.page.evaluate(WORDS) == []


def test_page_is_legible_in_the_dark(browser: Chromium, tmp_path: Path) -> None:
    """Where the browser prefers dark pages, text and background still differ."""
    file = tmp_path / "report.html"
    file.write_bytes(report_page(GALLERY["good"]()).encode())
    with browser.visitor() as visitor:
        visitor.page.emulate_media(color_scheme="dark")
        visitor.open_file(file)
        text, ground = (
            visitor.page.evaluate(f"getComputedStyle(document.body).{name}")
            for name in ("color", "backgroundColor")
        )
    assert text != ground
