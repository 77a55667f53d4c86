# SPDX-License-Identifier: Apache-2.0
"""Rows whose vectors are near are dropped, but for the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raybatch.dataset import Rows
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.workflows import duplicates
from airflow_provider_raybatch.workflows.duplicates import SemanticDuplicates
from tests.support.approved import AssertSentences
from tests.support.datasets import batch, written  # noqa: F401 - messages.txt uses both


def vectors(*found: Any, kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({
        "id": pa.array(range(len(found))),
        "embedding": pa.array(found, kind or pa.list_(pa.float32())),
    })


def test_the_first_of_near_vectors_stays() -> None:
    """Whatever their lengths; and a row that was dropped is compared with no other."""
    step = SemanticDuplicates(threshold=0.9)
    near = [[1, 0], [9, 1], [0.8, 0.6], [0, 2], None, [0.1, 5]]
    assert [drop and (drop.rule, drop.reason) for drop in step(vectors(*near)).drops] == [
        None,
        ("semantic_duplicate", "its cosine with '0' is 0.99"),
        None,
        None,
        ("no_vector", "embedding has no vector"),
        ("semantic_duplicate", "its cosine with '3' is 1.00"),
    ]
    (later,) = step(vectors([2, 0])).drops
    assert later is not None
    assert later.reason == "its cosine with '0' is 1.00"


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_rows_are_compared_with_all_that_were_kept(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are cut into batches and blocks."""
    monkeypatch.setattr(duplicates, "_AT_ONCE", at_once)
    monkeypatch.setattr(duplicates, "_BLOCK", 5)
    numbers = np.random.default_rng(7).normal(size=(60, 3)).astype(np.float16)
    kept: list[int] = []
    lengths = numbers.astype(np.float32)
    lengths /= np.linalg.norm(lengths, axis=1, keepdims=True)
    for row in range(60):
        if all(lengths[row] @ lengths[other] < 0.95 for other in kept):
            kept.append(row)
    rows = vectors(*numbers.tolist(), kind=pa.list_(pa.float16(), 3))
    step = SemanticDuplicates()
    drops = [drop for start in range(0, 60, 20) for drop in step(rows.slice(start, 20)).drops]
    assert [row for row, drop in enumerate(drops) if drop is None] == kept
    assert 5 < len(kept) < 60


def test_rows_of_earlier_nights_stay(tmp_path: Path) -> None:
    earlier = Rows(written(tmp_path, vectors([1, 0], [0, 1])))
    step = SemanticDuplicates(earlier=earlier)
    (same, new) = step(vectors([0, 3], [1, 1])).drops
    assert same is not None
    assert (same.rule, new) == ("similar_to_accepted", None)


def test_what_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda made: made, UsageError)


def test_no_rows_have_no_vectors() -> None:
    assert SemanticDuplicates()(vectors()).drops == []
