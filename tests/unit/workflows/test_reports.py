# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.run_numbers import StepCounts
from airflow_provider_raybatch.dataset import Rows
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.workflows.card import Card
from airflow_provider_raybatch.workflows.comparison import Candidate, ComparisonReport, Rule, decide
from airflow_provider_raybatch.workflows.filters import Threshold
from airflow_provider_raybatch.workflows.sift import Funnel
from airflow_provider_raybatch.workflows.statistics import compare, mean_interval
from tests.support.datasets import batch, inferred, written

from .sifting import sifted

QUESTIONS = [f"q{number}" for number in range(100)]


def scores(correct: int) -> dict[str, float]:
    return {key: float(number < correct) for number, key in enumerate(QUESTIONS)}


def candidate(name: str, correct: int, baseline: int) -> Candidate:
    ours, theirs = scores(correct), scores(baseline)
    return Candidate(
        name, {"exact match": mean_interval(list(ours.values()))}, {"exact match": compare(ours, theirs)}
    )


def baseline(correct: int) -> Candidate:
    return Candidate("old", {"exact match": mean_interval(list(scores(correct).values()))})


@pytest.mark.parametrize(
    ("correct", "rule", "reason"),
    [
        (80, Rule("exact match"), "Promote new: its exact match is +0.200 above old's"),
        (60, Rule("exact match"), "the difference of new is +0.000, and more than 0 is needed."),
        (50, Rule("exact match"), "the difference of new is -0.100, and more than 0 is needed."),
        (63, Rule("exact match"), "the difference of new may be chance (p = 0.25, more than 0.05)."),
        (80, Rule("exact match", least_gain=0.3), "the difference of new is +0.200, and at least"),
        (80, Rule("f1"), "new was not compared by f1."),
    ],
)
def test_promote_or_hold(correct: int, rule: Rule, reason: str) -> None:
    decision = decide("old", [baseline(60), candidate("new", correct, 60)], rule)
    promotes = reason.startswith("Promote")
    assert decision.promoted == ("new" if promotes else None)
    assert decision.reason.startswith(reason if promotes else f"Hold old: {reason}")


def test_a_failed_candidate_is_reported_and_not_promoted() -> None:
    failed = Candidate("newest", failure="its model can't be loaded")
    incomplete = Candidate(
        "new",
        candidate("new", 90, 60).metrics,
        candidate("new", 90, 60).against_baseline,
        "3 of 100 rows failed",
    )
    decision = decide("old", [baseline(60), failed, incomplete], Rule("exact match"))
    assert decision.promoted is None
    assert "newest failed (its model can't be loaded); new failed (3 of 100 rows failed)" in decision.reason
    good = candidate("good", 80, 60)
    assert decide("old", [baseline(60), failed, good], Rule("exact match")).promoted == "good"
    assert decide("old", [baseline(60)], Rule("exact match")).reason == "Hold old: there is no candidate."


def test_more_candidates_need_more_evidence() -> None:
    """A p-value of 0.03 promotes one candidate alone, and not one of two."""
    lucky = candidate("lucky", 66, 60)
    assert 0.025 < lucky.against_baseline["exact match"].p_value < 0.05
    assert decide("old", [lucky], Rule("exact match")).promoted == "lucky"
    assert decide("old", [lucky, candidate("same", 60, 60)], Rule("exact match")).promoted is None


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_table_plot_and_page(tmp_path: Path) -> None:
    candidates = [baseline(60), candidate("new <b>", 80, 60), Candidate("gone", failure="no | model")]
    report = ComparisonReport("Night <1>", "old", candidates, decide("old", candidates, Rule("exact match")))
    written = report.write(str(tmp_path / "report"))
    page = Page()
    text = Path(written["html_uri"]).read_text()
    page.feed(text)
    assert "new &lt;b&gt;" in text
    loaded = [value for _, found in page.tags for name, value in found.items() if name in {"src", "href"}]
    assert loaded == []
    assert [tag for tag, _ in page.tags].count("svg") == 2
    table = Path(written["md_uri"]).read_text()
    assert "| old | 0.600 [" in table
    assert "+0.200 [" in table
    assert "| gone (failed: no \\| model) | - | - |" in table
    assert "Promote new <b>" in table
    figures = json.loads(Path(written["json_uri"]).read_text())
    assert figures["candidates"][1]["against_baseline"]["exact match"]["wins"] == 20
    assert figures["decision"]["promoted"] == "new <b>"


def test_no_candidate_has_figures() -> None:
    with pytest.raises(UsageError, match=r"candidates: none has figures to compare \(new: out of memory\)"):
        ComparisonReport("Night", "old", [Candidate("new", failure="out of memory")])


def test_a_card(tmp_path: Path) -> None:
    hostile = "a | b\n```\n<script>"
    result = inferred(tmp_path / "in", [{"id": n, "score": n, "response": hostile} for n in range(10)])
    funnel, kept, _ = sifted(tmp_path, Rows(result).batches(), [Threshold("score", least=4)])
    card = Card(
        "Questions", facts={"threshold": 4}, prompts={"generate": "Use ``` and {row.x}"}, funnel=funnel
    )
    card.add_run("generate", result, model="some/model")
    card.add_samples("accepted", kept, count=2)
    written = card.write(str(tmp_path / "kept"))
    found = json.loads(Path(written["card_uri"]).read_text())
    assert found["funnel"][-1] == {
        "step": "score_threshold", "rows": 6, "tokens": None, "dropped": {"score_below": 4},
    }  # fmt: skip
    assert found["totals"] == {
        "input_tokens": 10, "cached_tokens": 4, "output_tokens": 5, "tokens_paid": 12, "tokens_saved": 3,
        "gpu_seconds": 6.5, "seconds": 0,
    }  # fmt: skip
    assert (found["runs"][0]["rows"], found["runs"][0]["reused"]) == (10, 3)
    assert [row["id"] for row in found["samples"]["accepted"]] == [4, 5]
    text = Path(written["card_markdown_uri"]).read_text()
    assert "| score_threshold | 6 | 60.0% | - | score_below: 4 |" in text
    assert "| generate | some/model | 10 | 0 | 3 | 10 | 4 | 5 | 12 | 3 | 6.5 | 0 |" in text
    assert "````\nUse ``` and {row.x}\n````" in text
    assert "a \\| b \\`\\`\\` &lt;script>" in text
    assert Rows(str(tmp_path / "kept")).count == 6  # the card is beside the dataset, not in it


def test_a_card_and_a_funnel_of_a_run_in_steps(tmp_path: Path) -> None:
    letters = [{"ordinal": 2, "step": "repair.parse", "reason": "it is not JSON", "row": {}}]
    steps = [
        StepCounts(name="draft", asked=3, ok=1, rejected=2, input_tokens=9, output_tokens=7),
        StepCounts(name="repair", asked=2, skipped=1, ok=1, errors=1, reused=1),
    ]
    result = inferred(
        tmp_path, [{"draft_response": "a"}, {"draft_response": "b"}], letters=letters, steps=steps
    )
    card = Card("Questions", funnel=Funnel.of_run("write", result))
    card.add_run("write", result, model="m")
    assert card.as_json()["runs"][0]["steps"] == [one.model_dump() for one in steps]
    assert card.as_json()["funnel"] == [
        {"step": "input", "rows": 3, "tokens": None, "dropped": {}},
        {"step": "write", "rows": 2, "tokens": None, "dropped": {"repair.parse": 1}},
    ]
    text = card.as_markdown()
    assert "## Steps of write" in text
    assert "| draft | 3 | 0 | 1 | 2 | 0 | 0 | 0 | 9 | 0 | 7 |" in text
    assert "| repair | 2 | 1 | 1 | 0 | 1 | 0 | 1 | 0 | 0 | 0 |" in text


def test_a_funnel_does_not_begin_with_rows_of_a_writer(tmp_path: Path) -> None:
    result = written(tmp_path, batch(id=[1]))
    with pytest.raises(UsageError, match=r"result: '.*' is not of a batch inference; give what its task"):
        Funnel.of_run("write", result)


@pytest.mark.parametrize(
    ("second", "total"),
    [
        ({"cost": 2.5, "currency": "EUR"}, {"cost": 4.0, "currency": "EUR"}),
        ({"cost": 2.5, "currency": "USD"}, {}),
        ({"cost": None, "currency": "EUR"}, {}),
        ({"cost": None, "currency": None, "gpu_seconds": 0.0}, {"cost": 1.5, "currency": "EUR"}),
    ],
)
def test_a_card_sums_costs_that_are_known(second: dict[str, Any], total: dict[str, Any]) -> None:
    card = Card("Two steps")
    one = {"step": "generate", "gpu_seconds": 9.0}
    card.runs = [{**one, "cost": 1.5, "currency": "EUR"}, {**one, **second}, {"step": "foreign"}]
    totals = card.as_json()["totals"]
    assert {name: totals[name] for name in ("cost", "currency") if name in totals} == total


def test_a_card_of_an_empty_night(tmp_path: Path) -> None:
    import pyarrow as pa

    result = inferred(tmp_path / "in", [], pa.schema([("id", pa.int64()), ("response", pa.string())]))
    card = Card("Nothing")
    card.add_run("generate", result, model="m")
    card.add_samples("accepted", Rows(result))
    assert "There are none." in card.as_markdown()
