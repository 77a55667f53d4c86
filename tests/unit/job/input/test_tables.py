# SPDX-License-Identifier: Apache-2.0
"""Folders of tables are refused, wherever the table's root is."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.faulty_s3 import faulty
from tests.support.reading import names_of
from tests.support.s3_role import GET, LIST, Right, Role, limited
from tests.support.s3_server import S3Server

SIGNS = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Iceberg": f"metadata/00003-{uuid.UUID(int=7)}.metadata.json",
    "Iceberg of Hadoop": "metadata/v3.metadata.json",
    "Iceberg, packed": f"metadata/00003-{uuid.UUID(int=7)}.gz.metadata.json",
}


@pytest.fixture
def table(folder: Folder) -> Folder:
    """Files as a table has them."""
    for name in (
        "day=1/a.parquet",
        "day=1/b.parquet",
        "data/c.parquet",
        "data/2026/01/d.parquet",
        "e.parquet",
    ):
        folder.write(f"table/{name}", b"")
    folder.write("plain/x.parquet", b"")
    return folder


PATHS = [
    "", "table", "table/", "table/day=1", "table/data/2026/01", "table/*.parquet", "table/day=*/*.parquet",
    "*/*.parquet", "*/data/*/*/*.parquet", "**/*.parquet", "table/**", "table/data/2026/*/d.parquet",
]  # fmt: skip


@pytest.mark.parametrize(
    ("sign", "path"),
    [*(("Delta", path) for path in PATHS), *((sign, path) for sign in SIGNS for path in PATHS[3:5])],
)
def test_table_is_refused_from_each_folder_of_it(table: Folder, sign: str, path: str) -> None:
    table.write(f"table/{SIGNS[sign]}", b"{}")
    with pytest.raises(PreflightError) as caught:
        names_of(table, path)
    where = f"{table.uri}/{path}" if path else table.uri
    kind = sign.split()[0].strip(",")
    assert str(caught.value) == (
        f"source: {where} has files of the {kind} table {table.uri}/table, which also hold "
        "rows that were deleted or replaced; write the rows that count to a folder of Parquet, JSONL or CSV "
        "files elsewhere, and name that."
    )


def test_files_that_are_no_tables_are_read(table: Folder) -> None:
    """Files that are named one by one count as the user's choice: tables list their current files."""
    for sign in SIGNS.values():
        table.write(f"table/{sign}", b"{}")
    assert names_of(table, "plain") == ["plain/x.parquet"]
    assert names_of(table, "plain/*.parquet") == ["plain/x.parquet"]
    assert names_of(table, "table/e.parquet") == ["table/e.parquet"]


@pytest.mark.parametrize("name", ["metadata/schema.json", "metadata/x.metadata.json", "v1.metadata.json"])
def test_other_metadata_makes_no_table(table: Folder, name: str) -> None:
    table.write(f"table/{name}", b"{}")
    assert names_of(table, "table/day=1") == ["table/day=1/a.parquet", "table/day=1/b.parquet"]
    assert names_of(table, "table/*.parquet") == ["table/e.parquet"]


def test_each_folder_is_asked_for_once(s3_server: S3Server) -> None:
    lake = S3Folder(s3_server.new_bucket(), "", s3_server.credentials)
    days = [f"lake/in/day={day}/2026" for day in range(5)]
    for day in days:
        lake.write(f"{day}/x.parquet", b"x")
    with faulty(s3_server) as proxy:
        names_of(S3Folder(lake.bucket, "", proxy.api.credentials), *days)
    looks = [call.target for call in proxy.calls if "_delta_log" in call.target]
    assert len(looks) == 3  # the bucket, lake and in


def test_a_role_that_may_not_look_above_reads_its_folder(s3_server: S3Server) -> None:
    lake = S3Folder(s3_server.new_bucket(), "", s3_server.credentials)
    lake.write("table/_delta_log/0.json", b"{}")
    lake.write("table/day=1/a.parquet", b"x")
    below = {Right(LIST, f"{lake.bucket}/table/day=1/*"), Right(GET, f"{lake.bucket}/table/day=1/*")}
    with limited(Role(below)) as server:
        role = S3Folder(lake.bucket, "", server.credentials)
        assert names_of(role, "table/day=1") == ["table/day=1/a.parquet"]


def test_a_folder_above_that_may_not_be_read_is_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_raybatch.storage import folder as module

    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").touch()
    walk = module.os.walk

    def refusing(top: Path, onerror, **options: object):  # type: ignore[no-untyped-def]
        if Path(top).name in {"_delta_log", ".hoodie", "metadata"}:
            onerror(PermissionError(13, "Permission denied"))
            return iter(())
        return walk(top, onerror=onerror, **options)

    monkeypatch.setattr(module.os, "walk", refusing)
    found = resolve(InputArguments(source=[str(tmp_path / "in")]), None)
    assert [file.uri for file in found.files] == [str(tmp_path / "in/a.csv")]
