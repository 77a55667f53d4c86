# SPDX-License-Identifier: Apache-2.0
"""A committed dataset has the same rows for each reader; a changed file is an error that names it."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest, ManifestFile
from airflow_provider_raybatch.contract.run_numbers import Counts
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.dataset import Dataset, DatasetError, Rows, open_dataset, s3_credentials
from airflow_provider_raybatch.dataset.files import DatasetFiles
from airflow_provider_raybatch.dataset.writer import DatasetWriter
from airflow_provider_raybatch.exceptions import RayConnectionError
from airflow_provider_raybatch.storage.folder import LocalFolder, folder
from tests.support.damage import flipped
from tests.support.publishing import part, publish
from tests.support.s3_server import serving

PARTS, ROWS_PER_PART = 12, 100
ROWS = PARTS * ROWS_PER_PART
FLIPS = 150


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3 API server over HTTP."""
    with serving() as server:
        boto3.client(
            "s3",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
        ).create_bucket(Bucket="lake-1")
        yield server.url


@pytest.fixture
def aws(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Airflow connection ``lake`` to the server; the environment has no credentials."""
    extra = {"endpoint_url": s3, "region_name": "us-east-1"}
    text = json.dumps({"conn_type": "aws", "login": "a", "password": "b", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", text)
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)


def commit(base: str, kind: str, credentials: AwsCredentials | None = None) -> dict[str, Any]:
    """Write a dataset as a job does; return the result of its task."""
    place = folder(base, credentials)
    files = []
    for number in range(PARTS):
        first = number * ROWS_PER_PART
        rows = [{"id": i, "response": f"answer {i}"} for i in range(first, first + ROWS_PER_PART)]
        if kind == "parquet":
            sink = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pylist(rows), sink)
            content = sink.getvalue().to_pybytes()
        else:
            content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        path = f"part-{number:05d}.{kind}"
        place.write(f"data/c1/{path}", content)
        files.append(ManifestFile(path=path, rows=ROWS_PER_PART, bytes=len(content)))
    manifest = BatchManifest.model_validate({
        "uri": f"{place.uri}/data/c1", "manifest_uri": f"{place.uri}/manifests/c1.json", "format": kind,
        "files": files, "schema": [{"name": "id", "type": "int64"}],
        "counts": Counts(input=ROWS, ok=ROWS, error=0), "owner": TaskKey(dag_id="d", run_id="r", task_id="t"),
        "run_token": "x", "submission_id": "s", "created_at": "2026-01-01T00:00:00Z",
    })  # fmt: skip
    place.write("manifests/c1.json", manifest.model_dump_json(by_alias=True).encode())
    return {"uri": manifest.uri, "manifest_uri": manifest.manifest_uri}


def assert_readable(dataset: Dataset) -> None:
    assert len(dataset.files) == PARTS
    assert dataset.to_arrow()["id"].to_pylist() == list(range(ROWS))
    connection = duckdb.connect()
    relation = dataset.duckdb(connection)
    assert relation.aggregate("sum(id)").fetchall() == [(sum(range(ROWS)),)]
    relation.filter("id < 3").create("kept")
    assert connection.execute("select response from kept order by id").fetchall() == [
        ("answer 0",), ("answer 1",), ("answer 2",),
    ]  # fmt: skip
    assert relation.aggregate("count(*)").fetchall() == [(ROWS,)]  # a second scan has the same rows


def test_a_destination_means_its_newest_dataset(tmp_path: Path) -> None:
    manifest = Path(commit(str(tmp_path), "parquet")["manifest_uri"])
    (tmp_path / "manifest.json").write_bytes(manifest.read_bytes())
    for destination in (tmp_path, f"{tmp_path}/"):
        assert open_dataset(destination).files == open_dataset(str(manifest)).files


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
class TestEachWay:
    def test_local(self, tmp_path: Path, kind: str) -> None:
        result = commit(str(tmp_path), kind)
        dataset = open_dataset(result)
        assert dataset.files[0] == f"{tmp_path}/data/c1/part-00000.{kind}"
        assert dataset.manifest.counts.ok == ROWS
        assert_readable(dataset)

    def test_by_manifest(self, tmp_path: Path, kind: str) -> None:
        result = commit(str(tmp_path), kind)
        assert_readable(open_dataset(result["manifest_uri"]))
        assert_readable(open_dataset(Path(result["manifest_uri"])))
        assert_readable(open_dataset(f"file://{result['manifest_uri']}"))

    def test_s3_with_an_airflow_connection(self, aws: None, s3: str, kind: str) -> None:
        credentials = AwsCredentials(
            aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1", endpoint_url=s3
        )
        result = commit(f"s3://lake-1/with-{kind}", kind, credentials)
        dataset = open_dataset(result, aws_conn_id="lake")
        assert dataset.files[0] == f"s3://lake-1/with-{kind}/data/c1/part-00000.{kind}"
        assert_readable(dataset)

    def test_s3_with_the_environments_identity(
        self, s3: str, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in {
            "AWS_ENDPOINT_URL": s3, "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        assert_readable(open_dataset(commit(f"s3://lake-1/env-{kind}", kind)))


class TestWhatIsNotAsItWas:
    @pytest.fixture
    def result(self, tmp_path: Path) -> dict[str, Any]:
        return commit(str(tmp_path), "parquet")

    @pytest.mark.parametrize(
        ("file", "content", "why"),
        [
            ("part-00003.parquet", None, r"files: 'part-00003.parquet' of .* is gone; make the dataset"),
            ("part-00003.parquet", b"short", r"has 5 bytes, but its manifest says [\d,]+; make the dataset"),
            ("part-x.parquet", b"x", r"'part-x.parquet' in .* is not in the manifest; remove it"),
        ],
        ids=["missing", "changed", "extra"],
    )
    def test_other_files_are_reported(
        self, result: dict[str, Any], file: str, content: bytes | None, why: str
    ) -> None:
        place = Path(result["uri"], file)
        if content is None:
            place.unlink()
        else:
            place.write_bytes(content)
        with pytest.raises(DatasetError, match=why):
            open_dataset(result)

    def test_other_rows_in_a_file_of_the_same_size(self, result: dict[str, Any]) -> None:
        opened = open_dataset(result)
        counts = Counts(input=ROWS + 1, ok=ROWS + 1, error=0)
        changed = Dataset(opened.manifest.model_copy(update={"counts": counts}))
        for read in (changed.to_arrow, changed.duckdb, changed.to_polars, changed.to_pandas):
            with pytest.raises(DatasetError, match=r"rows: .* has 1,200, but its manifest says 1,201"):
                read()

    def test_no_manifest(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"manifest: '.*none.json' can't be read"):
            open_dataset(str(tmp_path / "none.json"))

    @pytest.mark.parametrize("result", [None, 7, {"rows": 1}], ids=str)
    def test_no_result(self, result: Any) -> None:
        why = re.escape(f"result: {result} has no 'manifest_uri'; give what")
        with pytest.raises(DatasetError, match=why):
            open_dataset(result)

    def test_no_connection(self) -> None:
        with pytest.raises(RayConnectionError, match="the connection 'none' doesn't exist"):
            open_dataset("s3://lake-1/manifest.json", aws_conn_id="none")

    @pytest.mark.parametrize(
        ("package", "read", "extra"),
        [
            ("pyarrow.dataset", "to_arrow", "dataset"),
            ("duckdb", "duckdb", "dataset"),
            ("polars", "to_polars", "polars"),
            ("pandas", "to_pandas", "pandas"),
        ],
    )
    def test_what_is_not_installed(
        self, result: dict[str, Any], monkeypatch: pytest.MonkeyPatch, package: str, read: str, extra: str
    ) -> None:
        dataset = open_dataset(result)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(DatasetError, match=rf"install airflow-provider-raybatch\[{extra}\]"):
            getattr(dataset, read)()


def test_each_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    place, chance = LocalFolder(str(tmp_path)), random.Random(1)
    rows = [{"n": number, "text": "".join(chance.choices("abcdefgh ", k=30))} for number in range(40)]
    manifest = publish(place, [part(place, rows)], len(rows))
    file = Path(manifest.uri, manifest.files[0].path)
    content, right = file.read_bytes(), Dataset(manifest).to_arrow()
    told = []
    for _ in range(FLIPS):
        file.write_bytes(flipped(content, chance.randrange(8 * len(content))))
        try:
            assert Dataset(manifest).to_arrow().equals(right, check_metadata=True)
        except DatasetError as error:
            told.append(str(error))
        with contextlib.suppress(DatasetError):
            found = pa.Table.from_batches(DatasetFiles(manifest).batches(right.column_names))
            assert found.equals(right.replace_schema_metadata(None))
    assert len(told) > 0.8 * FLIPS
    assert {one.partition(" (")[0] for one in told} == {f"files: {manifest.uri} can't be read"}


def copied(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    assert {path.relative_to(source) for path in source.rglob("*")} == {
        path.relative_to(target) for path in target.rglob("*")
    }


@pytest.mark.parametrize("opened", ["", "manifest.json", "manifests/c1.json"])
@pytest.mark.parametrize("original", ["kept", "changed", "gone"])
def test_a_copy_is_read_where_it_lies(tmp_path: Path, opened: str, original: str) -> None:
    """The manifest names the place where the dataset was made, which a copy must not read."""
    made, copy = tmp_path / "made", tmp_path / "elsewhere/copy"
    commit(str(made), "parquet")
    shutil.copy(made / "manifests/c1.json", made / "manifest.json")
    copied(made, copy)
    if original == "changed":
        (made / "data/c1/part-00003.parquet").unlink()
    if original == "gone":
        shutil.rmtree(made)
    dataset = open_dataset(str(copy / opened))
    assert dataset.files == [f"{copy}/data/c1/part-{number:05d}.parquet" for number in range(PARTS)]
    assert (dataset.manifest.uri, dataset.manifest.manifest_uri) == (
        f"{copy}/data/c1",
        f"{copy}/manifests/c1.json",
    )
    assert_readable(dataset)
    rows = Rows(str(copy / opened))
    assert rows.manifests[0].uri == f"{copy}/data/c1"
    assert sum(batch.num_rows for batch in rows.batches()) == ROWS


@pytest.mark.parametrize("opened", ["", "manifest.json", "manifests/c1.json"])
def test_a_destination_may_be_called_as_its_folder_of_manifests(tmp_path: Path, opened: str) -> None:
    made = tmp_path / "manifests"
    commit(str(made), "parquet")
    shutil.copy(made / "manifests/c1.json", made / "manifest.json")
    assert open_dataset(str(made / opened)).manifest.uri == f"{made}/data/c1"


def test_a_damaged_copy_is_not_hidden_by_the_original(tmp_path: Path) -> None:
    commit(str(tmp_path / "made"), "parquet")
    copied(tmp_path / "made", tmp_path / "copy")
    (tmp_path / "copy/data/c1/part-00003.parquet").unlink()
    with pytest.raises(
        DatasetError, match=re.escape(f"'part-00003.parquet' of {tmp_path}/copy/data/c1 is gone")
    ):
        open_dataset(str(tmp_path / "copy/manifests/c1.json"))


def test_a_copy_in_another_bucket_is_read_there(aws: None, tmp_path: Path) -> None:
    credentials = s3_credentials("s3://lake-1/copy", "lake")
    commit(str(tmp_path / "made"), "parquet")
    target = folder("s3://lake-1/copy", credentials)
    for path in (tmp_path / "made").rglob("*.*"):
        target.write(str(path.relative_to(tmp_path / "made")), path.read_bytes())
    dataset = open_dataset("s3://lake-1/copy/manifests/c1.json", aws_conn_id="lake")
    assert dataset.files[0] == "s3://lake-1/copy/data/c1/part-00000.parquet"
    assert_readable(dataset)


def test_a_copied_dataset_of_a_writer_is_read_where_it_lies(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist([{"id": 1, "day": "a"}, {"id": 2, "day": "b"}])
    with DatasetWriter(str(tmp_path / "made"), partition_by=["day"]) as writer:
        writer.write(batch)
    copied(tmp_path / "made", tmp_path / "copy")
    shutil.rmtree(tmp_path / "made")
    rows = Rows(str(tmp_path / "copy"))
    assert rows.manifests[0].uri.startswith(f"{tmp_path}/copy/data/")
    assert [row for found in rows.batches() for row in found.to_pylist()] == batch.to_pylist()
