# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.dataset import Rows
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.workflows.filters import SchemaCheck
from airflow_provider_raybatch.workflows.prompts import repair_messages
from airflow_provider_raybatch.workflows.sift import Drop
from tests.support.approved import AssertSentences
from tests.support.datasets import batch, inferred

from .sifting import sifted

PAIR = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "minLength": 3, "pattern": r"\?$"},
        "level": {"type": "integer", "minimum": 1, "maximum": 5},
        "kind": {"enum": ["a", "b"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["question", "level"],
    "additionalProperties": False,
}


def test_reasons(assert_sentences: AssertSentences) -> None:
    def said(response: str | None, rule: str) -> str:
        drop = SchemaCheck(PAIR).check(response)
        assert isinstance(drop, Drop)
        assert drop.rule == rule
        return drop.reason

    assert_sentences(said)


def test_properties_become_columns_with_types() -> None:
    good = {"question": "abc?", "level": 4.0, "kind": "a", "tags": ["x"]}
    checked = SchemaCheck(PAIR, prefix="p_")(batch(response=[json.dumps(good), "no"]))
    assert checked.batch.drop_columns(["response"]).to_pylist() == [
        {"p_question": "abc?", "p_level": 4, "p_kind": "a", "p_tags": ["x"]},
        dict.fromkeys(("p_question", "p_level", "p_kind", "p_tags")),
    ]
    assert checked.batch.schema.field("p_level").type == pa.int64()


def test_a_property_that_may_be_null_keeps_its_type() -> None:
    schema = {"properties": {"level": {"type": ["integer", "null"]}, "any": {"type": ["integer", "string"]}}}
    checked = SchemaCheck(schema)(batch(response=['{"level": 3, "any": 3}', '{"level": null, "any": "x"}']))
    assert checked.batch.select(["level", "any"]).to_pylist() == [
        {"level": 3, "any": "3"},
        {"level": None, "any": '"x"'},
    ]


def test_columns_are_there_without_rows() -> None:
    checked = SchemaCheck(PAIR)(batch(response=pa.array([], pa.string())))
    assert {"question", "level"} <= set(checked.batch.schema.names)


def test_a_failed_response_is_repaired_by_one_more_request(tmp_path: Path) -> None:
    """The operator's result leads to the repair's prompt, and repaired rows join the good ones."""
    asked = [
        {"id": 1, "topic": "sea", "response": '{"question": "Deep?", "level": 1}'},
        {"id": 2, "topic": "sky", "response": '{"question": "Blue?"}'},
    ]
    first = Rows(inferred(tmp_path / "first", asked)).batches()
    _, good, failed = sifted(tmp_path / "checked", first, [SchemaCheck(PAIR)])
    messages = repair_messages("Write about: {row.topic}", PAIR, system_prompt="JSON.")
    (row,) = failed.rows()
    rendered = [RowTemplate(one["content"]).render(row) for one in messages]
    assert rendered[:3] == ["JSON.", "Write about: sky", '{"question": "Blue?"}']
    refused = "the response does not fit the schema ($: 'level' is a required property)"
    assert rendered[3].startswith(f"This answer was refused: {refused}. Answer the request")
    assert json.dumps(PAIR) in rendered[3]
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "user"]

    second = [
        {**row, "repaired_response": '{"question": "Blue?", "level": 2}'},
        {**row, "id": 3, "repaired_response": "still not"},
    ]
    check = SchemaCheck(PAIR, column="repaired_response", name="repair")
    again = Rows(inferred(tmp_path / "second", second)).batches()
    funnel, repaired, rejected = sifted(tmp_path / "repaired", again, [check])
    assert [one.rows for one in funnel.steps] == [2, 1]
    both = Rows(*(one.manifests[0].manifest_uri for one in (good, repaired)))
    assert list(both.rows(["id", "question", "level"])) == [
        {"id": 1, "question": "Deep?", "level": 1},
        {"id": 2, "question": "Blue?", "level": 2},
    ]
    (left,) = rejected.rows()
    assert (left["dropped_by"], left["rule"]) == ("repair", "not_json")


def test_what_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda made: made, UsageError)
