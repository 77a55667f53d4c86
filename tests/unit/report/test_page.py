# SPDX-License-Identifier: Apache-2.0
"""A report's page says what is known, loads nothing, and no text gets out of its place."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from airflow_provider_raybatch.contract.manifest import Savings
from airflow_provider_raybatch.contract.report import FailureGroup, Report
from airflow_provider_raybatch.contract.run_numbers import Counts, LastRun
from airflow_provider_raybatch.report.page import report_page
from airflow_provider_raybatch.report.rendering import render
from tests.support import reports
from tests.support.documents import PACKAGE

INLINE = {"bdi", "code", "em", "span", "strong"}
VOID = {"meta", "br", "hr", "img", "input", "link", "col"}
ADDRESSES = {"src", "srcset", "action", "formaction", "data", "background", "poster", "xlink:href", "ping"}
ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "nav", "a", "section",
    "article", "div", "h1", "h2", "h3", "h4", "h5", "p", "span", "strong", "em", "bdi", "code", "dl",
    "dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary", "figure",
    "figcaption", "svg", "desc", "rect", "line", "path", "circle", "text",
}  # fmt: skip


class Page(HTMLParser):
    """What a browser would make of a page; fails where an element is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag not in INLINE:
            self.texts.append("\n")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        """Its text, without what only parts lines."""
        return " ".join("".join(self.texts).split())


@cache
def page(name: str) -> Page:
    return Page(report_page(reports.GALLERY[name]()))


def shown(report: Report) -> str:
    return Page(report_page(report)).text


@pytest.mark.parametrize("name", reports.GALLERY)
def test_a_page_runs_and_loads_nothing(name: str) -> None:
    found = page(name)
    assert {tag for tag, _ in found.elements} <= ELEMENTS
    for _, attributes in found.elements:
        assert not [key for key in attributes if key.startswith("on") or key in ADDRESSES or key == "style"]
        assert (attributes.get("href") or "#").startswith("#")
        assert not {attributes.get("x"), attributes.get("width"), attributes.get("height")} & {"nan", "inf"}
    style = found.texts[found.texts.index(next(text for text in found.texts if ":root" in text))]
    assert "url(" not in style
    assert "@import" not in style


@pytest.mark.parametrize("name", reports.GALLERY)
def test_a_page_is_fit_for_a_screen_reader(name: str) -> None:
    elements = page(name).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in elements if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit()]
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    assert all(attributes.get("scope") for tag, attributes in elements if tag == "th")
    pictures = [attributes for tag, attributes in elements if tag == "svg"]
    assert all("aria-hidden" in one or one.get("aria-label") for one in pictures)


def test_the_policy_comes_before_what_it_bounds() -> None:
    head = [attributes for tag, attributes in page("good").elements if tag == "meta"]
    assert head[0] == {"charset": "utf-8"}
    assert head[1] == {
        "http-equiv": "Content-Security-Policy",
        "content": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    }


def test_no_template_trusts_a_text(tmp_path: Path) -> None:
    for path in PACKAGE.rglob("*.jinja"):
        source = path.read_text(encoding="utf-8")
        assert not re.search(r"\bsafe\b|\bautoescape\b|\bMarkup\b|xmlattr|tojson|urlize", source), path
    (tmp_path / "own.jinja").write_text("{{ text }}")
    assert render(tmp_path / "own.jinja", text="<\u202e\x00\r>") == "&lt;[U+202E]\ufffd\n&gt;"
    with pytest.raises(UndefinedError):
        render(tmp_path / "own.jinja")


@pytest.mark.parametrize("name", reports.GALLERY)
def test_what_is_not_known_is_not_written(name: str) -> None:
    assert "None" not in re.split(r"[<>\s]+", report_page(reports.GALLERY[name]()))


def test_the_page_follows_what_people_ask() -> None:
    found = report_page(reports.good())
    titles = (
        "Is it good?",
        "What did it cost?",
        "How do the answers look?",
        "How fast was it?",
        "How was it made?",
    )
    places = [found.rindex(f">{title}<") for title in titles]
    assert places == sorted(places)


def test_steps_are_shown_as_one_table() -> None:
    text = page("in_steps").text
    assert "Steps Step Asked Skipped Good Rejected Failed Reused Prompt tokens Generated tokens" in text
    assert "150 rows failed: draft.tokenize (could not be tokenised)" in text
    assert "repair 450 9,400 450 0 0 40 80,000 11,500" in text
    assert "Skipped rows did not fulfil" not in page("good").text
    assert "Step draft Why answers ended (finish reason) This run stop" in text
    assert "Step repair Length of answers" in text
    assert "Step judge Answers Answer Rows good 9,000 bad 850" in text
    first = "Row 3 Step draft: 3 generated tokens Prompt Describe Ann. Answer Ann bakes."
    assert f"{first} Step judge Prompt Judge Ann bakes. Answer good Row 9 No step asked" in text


def test_texts_of_rows_are_whole_and_escaped() -> None:
    text = page("nasty").text
    assert "</script><script>alert(1)</script>" in text
    assert "<img src=x onerror=alert(1)>" in text
    assert "&lt; &amp;amp; {{ x }}" in text
    assert "javascript:alert(1)" in text


def test_marks_that_turn_text_are_shown_by_number() -> None:
    text = report_page(reports.nasty())
    assert "[U+202E]right to left[U+2066] and no way back" in text
    assert not set("\u202e\u2066\x00\x07\x1b\ud800\uffff\u2028") & set(text)


def test_numbers_are_beside_the_last_ones() -> None:
    text = page("good").text
    assert "Failed rows 150 12 12.5x worse" in text
    assert "Cost 1.82 USD 1.67 USD +9.2 % worse" in text
    assert "Good rows 9,850 9,700 +1.5 %" in text


def test_money_is_shown_by_type() -> None:
    text = page("good").text
    assert "H100 1,241.1 0.34 h 4.90 USD 1.69 USD" in text
    assert "A10G 400.0 0.11 h 1.21 USD 0.13 USD" in text


def test_a_type_without_a_price_is_named() -> None:
    text = shown(reports.changed(cost=None, gpu_hour_price={"H100": 4.9}))
    assert "The cost is not known: gpu_hour_price has no price for A10G." in text
    assert "A10G 400.0 0.11 h none set unknown" in text


def test_what_is_not_known_is_unknown() -> None:
    text = shown(reports.bare(rows=5, errors=0, state="committed", seconds=3.0))
    assert "Cost unknown" in text
    assert "None" not in text
    assert "nan" not in page("not_finite").text
    assert "inf " not in page("not_finite").text


def test_a_job_without_gpus_says_why_it_has_no_cost() -> None:
    found = {"cost": None, "gpu_seconds_by_type": {}, "gpu_hour_price": {}}
    for cost in (None, 0.0):
        without = shown(reports.changed(**{**found, "cost": cost, "currency": None}, gpu_seconds=0.0))
        assert "No GPU was held; only GPUs have a price." in without
        assert "worth about" not in shown(reports.changed(cost=cost, savings=Savings(reused=4, cost=cost)))
    assert "Cost 0.00" in without


def test_columns_that_changed_are_named() -> None:
    text = page("good").text
    assert "The schema changed: 1 column added, 1 column removed, 1 column of another type" in text
    assert "score other type double int64" in text
    assert "finish_reason added string none" in text
    assert "old removed none string" in text


def test_three_thousand_columns_are_folded() -> None:
    found = page("huge")
    assert "3,000 columns of the dataset; 2,500 more are in report.json" in found.text
    assert "And 2,960 more columns." in found.text
    assert "And 5,950 more columns." in found.text
    assert len(report_page(reports.huge())) < 1_000_000


def test_answers_of_a_megabyte_are_cut_with_a_note() -> None:
    assert "[996,000 more characters]" in page("huge").text


def test_a_refused_job_is_one_sentence() -> None:
    text = page("refused").text
    assert (
        "The job failed (user_error), and no dataset was published. prompt: the source has no column" in text
    )
    assert "Is it good?" not in text


def test_a_killed_job_shows_what_it_noted() -> None:
    text = page("killed").text
    assert "The job ended without saying why, and no dataset was published." in text
    assert "4,100 good rows, 20 failed, 5,880 not done" in text


def test_a_batch_that_ended_early_says_so() -> None:
    counts = Counts(input=9, ok=1, error=8, errors_by_step={"cancelled": 6, "engine": 2})
    failures = [FailureGroup(step="cancelled", rows=6)]
    text = shown(reports.changed(rows=1, errors=8, counts=counts, failures=failures))
    assert "The batch ended early: 1 good row, 2 failed, 6 not asked before." in text
    assert "not asked before the batch was cancelled" in text


def test_an_input_without_rows_is_said() -> None:
    assert "The input has no rows." in page("no_rows").text


def test_content_that_is_left_out_is_said() -> None:
    found = page("without_content")
    assert "Content of rows is left out of this report." in found.text
    assert "Company 3 Ltd" not in found.text
    assert "I can't say." not in found.text


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    """A job without a dataset has not counted cached tokens; a last run from an XCom has no steps."""
    assert "prefix cache" not in report_page(reports.killed())
    last = LastRun(rows=90, errors=10)
    page = report_page(reports.changed(last_run=last))
    steps = page[page.index("Failed rows by step") : page.index("rows failed: ")]
    assert "Last" not in steps
