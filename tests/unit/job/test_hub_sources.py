# SPDX-License-Identifier: Apache-2.0
"""Whole jobs over a dataset of the Hugging Face hub: what a retry pays after the branch has moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.dataset_hub import DatasetHub, serving
from tests.support.saved_dataset import with_features
from tests.support.whole_job import attempt, dying_attempt, without_cluster

NAME = "acme/reviews"
SOURCE = f"hf://datasets/{NAME}@main/data/*.parquet"
FEATURES = {"id": {"names": ["zero", "one", "two", "three"], "_type": "ClassLabel"}}


def shard(*ids: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(with_features(pa.table({"id": ids}), FEATURES), sink)
    return bytes(sink.getvalue())


FILES = {"README.md": b"old", "data/0.parquet": shard(0, 1, 2), "data/1.parquet": shard(3)}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DatasetHub]:
    without_cluster(monkeypatch)
    with serving(tmp_path) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(hub.authority))
        monkeypatch.setenv("HF_TOKEN", "hf_member")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        hub.tokens = {"hf_member"}
        hub.push(NAME, FILES)
        yield hub


def test_a_retry_goes_on_where_the_branch_has_other_words(hub: DatasetHub, tmp_path: Path) -> None:
    place = LocalFolder(str(tmp_path / "out"))
    dying_attempt(place, 0, SOURCE)
    commit = hub.push(NAME, {**FILES, "README.md": b"new"})
    emitted: list[Any] = []
    summary = attempt(place, 1, SOURCE, emitted)
    assert (summary.rows, summary.resumed) == (4, 4)
    told = [one.message for one in emitted if isinstance(one, Notice)]
    assert f"source: hf://datasets/{NAME}@main is read at commit {commit}." in told
    table = pq.read_table(summary.uri)
    assert table.select(["id", "response"]).to_pylist() == [
        {"id": number, "response": f"Say {name}"}
        for number, name in enumerate(["zero", "one", "two", "three"])
    ]
    # What the source notes of its columns is not true of the dataset's.
    assert b"huggingface" not in (table.schema.metadata or {})


def test_a_retry_pays_for_changed_rows_alone(hub: DatasetHub, tmp_path: Path) -> None:
    place = LocalFolder(str(tmp_path / "out"))
    dying_attempt(place, 0, SOURCE)
    hub.push(NAME, {**FILES, "data/0.parquet": shard(2, 1), "data/2.parquet": shard(7)})
    summary = attempt(place, 1, SOURCE)
    assert (summary.rows, summary.resumed) == (4, 3)
    assert pq.read_table(summary.uri)["id"].to_pylist() == [2, 1, 3, 7]
