# SPDX-License-Identifier: Apache-2.0
"""Whole jobs of `model_task` classify: a label for each row's text, and the probability of each label."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.tasks.pooling import ClassifyTask
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.echo_place import EchoPlace
from tests.support.specs import spec

TEXTS = ["a red fox", "a red fox", "deep blue sea", "an old dog"]
LABELS = ["positive", "so-so", "negative"]


def classify(place: EchoPlace, number: int = 0, texts: Any = TEXTS, **fields: Any) -> BatchManifest:
    """Run a job over texts into a destination of its own."""
    place.folder = LocalFolder(str(place.root / f"out-{number}"))
    args = {"labels": LABELS, "request_log": str(place.root / "log"), **fields.pop("engine_args", {})}
    asked = {"model_task": "classify", "engine_args": args, **fields}
    return place.job(number, [{"text": text} for text in texts], **asked)


def test_rows_get_labels_with_probabilities(place: EchoPlace) -> None:
    manifest = classify(place)
    assert [(column.name, column.type) for column in manifest.columns] == [
        ("text", "string"),
        ("label", "string"),
        ("probability", "float"),
        ("probabilities", "struct<positive: float, so-so: float, negative: float>"),
        ("input_tokens", "int64"),
    ]
    rows = place.rows(manifest)
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-6)
        assert row["probabilities"][row["label"]] == row["probability"] == max(row["probabilities"].values())
    assert rows[0] == rows[1]
    assert len({row["probability"] for row in rows}) == 3
    assert (manifest.tokens.input, manifest.tokens.output, manifest.response_column) == (12, 0, "label")


def test_logits_have_columns_of_their_own_name(place: EchoPlace) -> None:
    """Which are other answers: a probability is never published as a logit."""
    store = str(place.root / "store")
    (probable, *_) = place.rows(classify(place, 0, reuse=store))
    manifest = classify(place, 1, reuse=store, pooling={"use_activation": False}, output_prefix="my_")
    assert manifest.counts.reused == 0
    (row, *_) = place.rows(manifest)
    assert row["my_logits"][row["my_label"]] == row["my_logit"] == max(row["my_logits"].values())
    powers = {label: math.exp(logit) for label, logit in row["my_logits"].items()}
    expected = {label: power / sum(powers.values()) for label, power in powers.items()}
    assert probable["probabilities"] == pytest.approx(expected, abs=1e-6)


def test_one_label_has_a_score(place: EchoPlace) -> None:
    """As of reward models; the label is the same in all rows."""
    rows = place.rows(classify(place, engine_args={"labels": ["LABEL_0"]}))
    assert {row["label"] for row in rows} == {"LABEL_0"}
    assert len({row["probability"] for row in rows}) == 3


def test_jsonl_has_an_object_of_probabilities(place: EchoPlace) -> None:
    (row, *_) = place.rows(classify(place, destination_format="jsonl"))
    assert list(row["probabilities"]) == LABELS


def test_a_dataset_without_answers_has_no_labels(place: EchoPlace) -> None:
    manifest = classify(place, 0, ["a fox"], max_errors=1, engine_args={"fail_pattern": "fox"})
    types = {column.name: column.type for column in manifest.columns}
    assert types["probabilities"].startswith("map<string, float")


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        (None, "the engine gave no probabilities"),
        ([[0.5, 0.5]], "the engine gave no probabilities"),
        (
            [0.5, float("nan")],
            "the answer has numbers that are not finite (NaN or infinite); try dtype='float32' in "
            "engine_args",
        ),
    ],
)
def test_numbers_that_mean_nothing_fail_their_row(numbers: Any, reason: str) -> None:
    task = task_of(spec(model_task="classify", prompt="{row.text}"))
    pooled = None if numbers is None else np.array(numbers, np.float32)
    made = task.check(Response(input_tokens=2, pooled=pooled, labels=("a", "b")), {})
    assert made == RowFailure("engine", reason, 2)


def test_a_label_of_another_model_has_no_column() -> None:
    """Where an output has labels that the first one lacks, and the reverse."""
    task = ClassifyTask(spec(model_task="classify", prompt="{row.text}"))
    one, other = (
        Response(input_tokens=3, pooled=np.array([0.25, 0.75], np.float32), labels=labels)
        for labels in (("a", "b"), ("b", "c"))
    )
    outputs = pa.chunked_array([task.outputs([one, other])])
    known = task.measured([outputs])
    assert known.labels == ("a", "b")
    columns = dict(zip(known.published_type.names, known.published(outputs), strict=True))
    assert columns["label"].to_pylist() == ["b", "c"]
    assert columns["probabilities"].to_pylist() == [{"a": 0.25, "b": 0.75}, {"a": None, "b": 0.25}]


def test_a_chat_is_classified_as_it_is(place: EchoPlace) -> None:
    """As of reward models, which judge the last answer."""
    messages = [{"role": "user", "content": "Is it {row.text}?"}, {"role": "assistant", "content": "Yes."}]
    rows = place.rows(classify(place, 0, ["a fox"], prompt=None, messages=messages))
    (whole,) = place.rows(classify(place, 1, ["Is it a fox? Yes."]))
    assert [(row["label"], row["probability"], row["input_tokens"]) for row in rows] == [
        (whole["label"], whole["probability"], 5)
    ]
