# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pytest

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.dataset import Rows
from airflow_provider_raybatch.dataset.errors import DatasetError, UsageError
from airflow_provider_raybatch.dataset.writer import DatasetWriter
from tests.support.approved import AssertSentences
from tests.support.datasets import batch, written, written_from
from tests.support.s3_server import serving


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    result = written(tmp_path, batch(id=[1, 2], text=["a", None]), batch(text=["c"], id=[3]))
    assert result["rows"] == 3
    assert list(Rows(result).rows()) == [
        {"id": 1, "text": "a"},
        {"id": 2, "text": None},
        {"id": 3, "text": "c"},
    ]


def test_uri_holds_the_parts_and_nothing_else(tmp_path: Path) -> None:
    result = written(tmp_path, batch(id=[1, 2]))
    assert [one.suffix for one in Path(result["uri"]).rglob("*") if one.is_file()] == [".parquet"]
    assert pa_dataset.dataset(result["uri"]).count_rows() == 2


def test_empty_dataset_has_its_columns(tmp_path: Path) -> None:
    result = written(tmp_path, batch(id=pa.array([], pa.int64()), text=pa.array([], pa.string())))
    assert result["rows"] == 0
    assert Rows(result).schema.names == ["id", "text"]
    assert [one.num_rows for one in Rows(result).batches()] == [0]
    import duckdb

    assert duckdb.read_parquet(f"{result['uri']}/*.parquet").columns == ["id", "text"]


def test_partitions_as_hive_reads_them(tmp_path: Path) -> None:
    rows = batch(language=["en", "de", "en", None], n=[1, 2, 3, 4], text=["a", "b", "c", "d"])
    result = written(tmp_path, rows, partition_by=["language"])
    import duckdb

    found = duckdb.sql(
        f"select language, n from read_parquet('{result['uri']}/**/*.parquet', hive_partitioning=true) "
        "where language = 'en' order by n"
    )
    assert found.fetchall() == [("en", 1), ("en", 3)]
    again = sorted(Rows(result).rows(), key=lambda row: row["n"])
    assert [(row["language"], row["n"]) for row in again] == [("en", 1), ("de", 2), ("en", 3), (None, 4)]


def test_values_of_partitions_stay_in_their_folder(tmp_path: Path) -> None:
    result = written(tmp_path, batch(topic=["a/../b=c %"], n=[1]), partition_by=["topic"])
    assert [row["topic"] for row in Rows(result).rows()] == ["a/../b=c %"]
    (part,) = Path(result["uri"]).rglob("*.parquet")
    assert len(part.relative_to(result["uri"]).parts) == 2


def test_an_exception_leaves_no_dataset(tmp_path: Path) -> None:
    first = written(tmp_path, batch(id=[1]))

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(id=[2])
        raise RuntimeError

    with pytest.raises(RuntimeError):
        written_from(tmp_path, failing())
    assert Rows(str(tmp_path)).manifests[0].manifest_uri == first["manifest_uri"]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_columns_are_those_of_the_first_batch(tmp_path: Path) -> None:
    writer = DatasetWriter(str(tmp_path))
    with pytest.raises(UsageError, match="rows: no batch was written"):
        _ = writer.schema
    writer.write(batch(id=[2]))
    assert writer.schema == pa.schema([("id", pa.int64())])


def test_before_the_manifest_readers_see_the_old_dataset(tmp_path: Path) -> None:
    written(tmp_path, batch(id=[1]))
    writer = DatasetWriter(str(tmp_path))
    writer.write(batch(id=[2]))
    writer._finish("")  # its parts are written, and the process dies
    assert list(Rows(str(tmp_path)).rows()) == [{"id": 1}]


def test_many_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_raybatch.dataset import writer

    monkeypatch.setattr(writer, "_WAITING_BYTES", 100)
    result = written(
        tmp_path,
        *(batch(k=[n % 2] * 20, id=list(range(n * 20, n * 20 + 20))) for n in range(20)),
        partition_by=["k"],
    )
    assert len(list(Path(result["uri"]).rglob("*.parquet"))) > 4
    assert sorted(row["id"] for row in Rows(result).rows()) == list(range(400))


def test_several_datasets_as_one(tmp_path: Path) -> None:
    one = written(tmp_path / "a", batch(id=[1], text=["a"]))
    two = written(tmp_path / "b", batch(id=[2], text=["b"], repaired=[True]))
    assert list(Rows(one, two).rows()) == [
        {"id": 1, "text": "a", "repaired": None},
        {"id": 2, "text": "b", "repaired": True},
    ]


def test_large_rows_come_in_small_batches(tmp_path: Path) -> None:
    result = written(tmp_path, batch(text=["x" * 2_000_000 + str(n) for n in range(40)]))
    assert max(one.nbytes for one in Rows(result).batches()) < 60_000_000


def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        bucket = server.new_bucket()
        server.open_to_this_process(monkeypatch)
        with DatasetWriter(f"s3://{bucket}/curated", partition_by=["language"]) as writer:
            writer.write(batch(language=["en", "de"], text=["a", "b"]))
        assert writer.result["bucket"] == bucket
        assert writer.result["uri"] == f"s3://{bucket}/{writer.result['key_prefix']}".rstrip("/")
        assert sorted(row["language"] for row in Rows(writer.result).rows()) == ["de", "en"]


def test_too_many_partitions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"partition_by: id have more than 1,000 values"):
        written(tmp_path, batch(id=list(range(1001)), n=[1] * 1001), partition_by=["id"])
    assert not list(tmp_path.rglob("*.parquet"))


def test_partitions_by_days_and_truths(tmp_path: Path) -> None:
    day = pa.array([date(2026, 1, 2)])
    rows = pa.RecordBatch.from_arrays([day, pa.array([True]), pa.array([[1.5]])], ["day", "good", "n"])
    result = written(tmp_path / "a", rows, partition_by=["day", "good"])
    assert list(Rows(result).rows()) == [{"day": date(2026, 1, 2), "good": True, "n": [1.5]}]


def test_what_is_refused(tmp_path: Path, assert_sentences: AssertSentences) -> None:
    (tmp_path / "manifest.json").write_text("[]")

    def refused(call: Callable[[Path], object]) -> object:
        return call(tmp_path)

    assert_sentences(refused, (DatasetError, SpecError))
