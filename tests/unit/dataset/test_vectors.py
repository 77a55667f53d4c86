# SPDX-License-Identifier: Apache-2.0
"""A dataset of vectors, read downstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest

from airflow_provider_raybatch.dataset import Dataset, open_dataset
from tests.support.datasets import inferred

FLOAT = pa.float32()


def vectors(folder: Path, numbers: Any, kind: pa.DataType = FLOAT) -> Dataset:
    schema = pa.schema([("id", pa.int64()), ("embedding", pa.list_(kind, 2))])
    rows = [{"id": row, "embedding": np.array(vector, kind.to_pandas_dtype())} for row, vector in numbers]
    return open_dataset(inferred(folder, rows, schema))


@pytest.mark.parametrize("kind", [FLOAT, pa.float16()])
def test_vectors_keep_their_size(tmp_path: Path, kind: pa.DataType) -> None:
    dataset = vectors(tmp_path, [(1, [0.5, 1.0]), (2, [2.0, 3.0])], kind)
    assert dataset.to_arrow().schema.field("embedding").type == pa.list_(kind, 2)
    assert dataset.sample(1).schema.field("embedding").type == pa.list_(kind, 2)
    frame = dataset.to_polars().collect()
    assert isinstance(frame.schema["embedding"], polars.Array)
    found = dataset.duckdb().query("v", "SELECT embedding::FLOAT[2] FROM v ORDER BY id").fetchall()
    assert found == [((0.5, 1.0),), ((2.0, 3.0),)]


def test_vectors_are_compared(tmp_path: Path) -> None:
    one = vectors(tmp_path / "one", [(1, [0.5, 1.0]), (2, [2.0, 3.0])])
    other = vectors(tmp_path / "other", [(1, [0.5, 1.0]), (2, [2.0, 3.5])])
    changes = one.compare(other, id_column="id", response_column="embedding")
    assert (changes.same, changes.changed) == (1, 1)
