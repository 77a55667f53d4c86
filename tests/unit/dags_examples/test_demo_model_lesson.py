# SPDX-License-Identifier: Apache-2.0
"""The demo model learns the requests of the example DAGs, with right answers."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.workflows.filters import SchemaCheck
from dags_examples.demo_model import reviews
from dags_examples.demo_model.corpus import facts
from tests.unit.dags_examples.example import Example


def drawn(skill: reviews.Review, split: str = "train", count: int = 200) -> list[reviews.Conversation]:
    return list(islice(reviews.reviews(split, 3, [skill]), count))


def test_prompts_are_those_of_the_dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curation = Example("data_curation", monkeypatch, tmp_path).module
    assert (reviews.LABEL_PROMPT, list(reviews.TOPICS)) == (curation.PROMPT, curation.TOPICS)
    nightly = Example("nightly_synthetic_data", monkeypatch, tmp_path).module
    assert (nightly.PROMPT, nightly.SCHEMA) == (reviews.QUESTION_PROMPT, reviews.SCHEMA)
    assert nightly.RUBRIC == reviews.RUBRIC
    system = RowTemplate(nightly.SYSTEM_PROMPT)
    assert tuple(system.render({"instruction": one}) for one in nightly.PERSONAS.values()) == reviews.SYSTEMS


def test_pairs_are_judged_by_the_sum() -> None:
    for one in drawn("pair"):
        a, b, first, second = map(int, re.findall(r"\d+", one.prompt))
        better = {(True, False): "A", (False, True): "B"}
        assert one.answer == better.get((a + b == first, a + b == second), "tie")


def test_scores_fit_the_facts() -> None:
    pairs = {pair for known in facts().values() for pair in known}
    for one in drawn("score"):
        question, answer = re.search(r"Question:\n(.*)\n\nAnswer:\n(.*)\n", one.prompt).groups()  # type: ignore[union-attr]
        judgement = json.loads(one.answer)
        assert SchemaCheck(reviews.RUBRIC.schema()).check(one.answer) == judgement
        assert ((question, answer) in pairs) == (judgement["score"] == 5)


def test_repairs_fit_the_schema_and_begin_with_what_failed() -> None:
    check = SchemaCheck(reviews.SCHEMA)
    for one in drawn("repair"):
        assert isinstance(one, reviews.Repair)
        assert check.check(one.answer) == json.loads(one.answer)
        assert [message["role"] for message in one.messages()] == ["system", "user", "assistant", "user"]
        assert one.refused in {message["content"] for message in one.messages()}
        assert one.refused != one.answer


@pytest.mark.parametrize("skill", ["label", "repair", "pair"])
def test_held_out_requests_are_not_taught(skill: reviews.Review) -> None:
    taught = {json.dumps(one.messages()) for one in drawn(skill, "train", 2000)}
    assert not taught & {json.dumps(one.messages()) for one in drawn(skill, "held_out", 2000)}
