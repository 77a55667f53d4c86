# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.job.input.listing import Listing, SourceFile, resolve
from airflow_provider_raybatch.job.input.survey import survey
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.approved import AssertSentences
from tests.support.publishing import publish_rows
from tests.support.reading import names_of
from tests.support.s3_server import S3Server


@pytest.fixture
def lake(folder: Folder) -> Folder:
    """A folder with data files and other files of a day, on disk and in S3."""
    for name in [
        "day1/part-1.parquet",
        "day1/part-0.parquet",
        "day1/sub/part-2.parquet",
        "day1/_SUCCESS",
        "day1/_temporary/0/part-9.parquet",
        "day1/.part-0.parquet.crc",
        "day2/part-0.parquet",
        "notes.txt",
        "rows.csv",
        "more.csv.gz",
        "x.jsonl",
        "y.ndjson.zst",
        "no_extension",
    ]:
        folder.write(name, b"")
    return folder


def listed(folder: Folder, paths: Sequence[str], **fields: Any) -> Listing:
    credentials = folder.credentials if isinstance(folder, S3Folder) else None
    return resolve(InputArguments(source=list(paths), **fields), credentials)


def test_folder_lists_files_by_name_without_bookkeeping(lake: Folder) -> None:
    expected = ["day1/part-0.parquet", "day1/part-1.parquet", "day1/sub/part-2.parquet"]
    assert names_of(lake, "day1") == names_of(lake, "day1/") == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("day*/part-0.parquet", ["day1/part-0.parquet", "day2/part-0.parquet"]),
        ("day1/*", ["day1/part-0.parquet", "day1/part-1.parquet"]),
        ("day1/**", ["day1/part-0.parquet", "day1/part-1.parquet", "day1/sub/part-2.parquet"]),
        (
            "**/*.parquet",
            ["day1/part-0.parquet", "day1/part-1.parquet", "day1/sub/part-2.parquet", "day2/part-0.parquet"],
        ),
        ("**/sub/*", ["day1/sub/part-2.parquet"]),
        ("day1/part-[0-9].parquet", ["day1/part-0.parquet", "day1/part-1.parquet"]),
        ("day?/sub/part-?.parquet", ["day1/sub/part-2.parquet"]),
        ("day1/_temporary/*/*.parquet", ["day1/_temporary/0/part-9.parquet"]),
    ],
)
def test_globs(lake: Folder, pattern: str, expected: list[str]) -> None:
    assert names_of(lake, pattern) == expected


def test_a_file_whose_name_has_wildcards_is_meant_itself(lake: Folder) -> None:
    lake.write("sales 1.csv", b"x\n1\n")
    assert names_of(lake, "sales [1].csv") == ["sales 1.csv"]
    lake.write("sales [1].csv", b"x\n1\n")
    assert names_of(lake, "sales [1].csv") == ["sales [1].csv"]


def test_the_order_of_the_paths_is_kept(lake: Folder) -> None:
    assert names_of(lake, "day2", "day1/part-1.parquet") == ["day2/part-0.parquet", "day1/part-1.parquet"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("day1", "parquet"),
        ("rows.csv", "csv"),
        ("more.csv.gz", "csv"),
        ("x.jsonl", "jsonl"),
        ("y.ndjson.zst", "jsonl"),
    ],
)
def test_format_follows_from_the_extension(lake: Folder, path: str, kind: str) -> None:
    assert listed(lake, [f"{lake.uri}/{path}"]).format == kind


def test_a_format_that_is_set_wins(lake: Folder) -> None:
    assert listed(lake, [f"{lake.uri}/no_extension"], format="csv").format == "csv"
    assert "no_extension" in names_of(lake, "", format="csv")


def test_what_cannot_be_a_source_is_refused(lake: Folder, assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda paths: names_of(lake, *paths), PreflightError, lake=lake.uri)


def test_local_uris_are_paths(tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_bytes(b"")
    assert len(resolve(InputArguments(source=[f"file://{tmp_path}/a%20b.csv"]), None).files) == 1


def test_digest_distinguishes_inputs() -> None:
    file = SourceFile("/a.csv", 3, "v1")
    listings = [
        Listing("csv", (file,)),
        Listing("jsonl", (file,)),
        Listing("csv", (dataclasses.replace(file, version="v2"),)),
        Listing("csv", (dataclasses.replace(file, size=4),)),
        Listing("csv", (file, SourceFile("/b.csv", 3, "v1"))),
        Listing("csv", (SourceFile("/b.csv", 3, "v1"), file)),
    ]
    assert len({listing.digest for listing in listings}) == len(listings)


@pytest.mark.parametrize(
    ("uri", "compression"),
    [
        ("/x.csv", None),
        ("/x.CSV.GZ", "gzip"),
        ("s3://b/x.jsonl.zst", "zstd"),
        ("https://host/x.csv.gz?signature=abc.zst", "gzip"),
        ("https://host/x.csv?name=y.gz", None),
    ],
)
def test_compression_follows_from_the_extension(uri: str, compression: str | None) -> None:
    assert SourceFile(uri, 0, "").compression == compression


class TestDatasetOfOurs:
    def test_a_destination_means_its_newest_dataset(self, folder: Folder) -> None:
        publish_rows(folder, [{"text": "old"}], token="one")
        manifest = publish_rows(folder, [{"text": "new"}], token="two")
        folder.write("manifest.json", b"{half")  # the one for people
        listing = listed(folder, [folder.uri])
        assert [file.uri for file in listing.files] == [
            f"{manifest.uri}/{file.path}" for file in manifest.files
        ]
        assert listing.format == "parquet"
        assert all(file.version for file in listing.files)

    def test_claimed_destination_without_a_dataset_has_no_rows(self, folder: Folder) -> None:
        publish_rows(folder, None)
        with pytest.raises(PreflightError, match="no Parquet, JSONL, CSV or Arrow file is in"):
            listed(folder, [folder.uri])

    def test_a_moved_dataset_is_read_where_it_is(self, tmp_path: Path) -> None:
        publish_rows(LocalFolder(str(tmp_path / "a")), [{"text": "x"}])
        (tmp_path / "a").rename(tmp_path / "b")
        listing = resolve(InputArguments(source=[str(tmp_path / "b")]), None)
        assert [Path(file.uri).is_file() for file in listing.files] == [True]


def put_raw(server: S3Server, bucket: str, *keys: str) -> None:
    client = server.client()
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith(("/", "$")) else b"text\na\n")


@pytest.mark.parametrize("path", ["t", "t/*", "t/**", "t/a*/*"])
def test_objects_that_stand_for_folders_are_not_files(s3_server: S3Server, path: str) -> None:
    bucket = s3_server.new_bucket()
    put_raw(s3_server, bucket, "t/", "t/a1/", "t/a2_$folder$", "t/a1/b/", "t/a1/x", "t/y")
    expected = {"t": ["t/a1/x", "t/y"], "t/*": ["t/y"], "t/**": ["t/a1/x", "t/y"], "t/a*/*": ["t/a1/x"]}[path]
    place = S3Folder(bucket, "", s3_server.credentials)
    listing = listed(place, [f"{place.uri}/{path}"], format="csv")
    assert [file.uri.removeprefix(f"{place.uri}/") for file in listing.files] == expected
    assert survey(listing, s3_server.credentials).rows == len(expected)


def test_a_glob_in_s3_lists_only_the_folders_that_it_means(s3_server: S3Server) -> None:
    bucket = s3_server.new_bucket()
    put_raw(s3_server, bucket, "data1/x.csv", "data2/x.csv", "data2/deep/y.csv", "other/x.csv")
    place = S3Folder(bucket, "", s3_server.credentials)
    assert names_of(place, "data*/x.csv") == ["data1/x.csv", "data2/x.csv"]
    assert len(names_of(place, "data*/**/*.csv")) == 3


@pytest.mark.parametrize("key", ["t//bad.csv", "t/a\tb.csv", "t/./x.csv", "t/../x.csv", "t/x/..", 't/"x\x7f'])
def test_a_key_that_can_not_be_read_is_named(s3_server: S3Server, key: str) -> None:
    bucket = s3_server.new_bucket()
    put_raw(s3_server, bucket, "data/x.csv", key)
    place = S3Folder(bucket, "", s3_server.credentials)
    assert names_of(place, "d*/*.csv") == ["data/x.csv"]
    for path in ("t", "**/*.csv"):
        with pytest.raises(StorageError) as caught:
            names_of(place, path)
        assert caught.value.failure_class is FailureClass.USER_ERROR
        assert str(caught.value).endswith(
            f"can't list it, the key {key!r} has an empty name, '.', '..' or a control character between its "
            "slashes; rename it, or name folders or a glob without it."
        )


@pytest.mark.parametrize("storage", ["GLACIER", "DEEP_ARCHIVE"])
def test_an_archived_object_is_told(s3_server: S3Server, storage: str) -> None:
    bucket = s3_server.new_bucket()
    s3_server.client().put_object(Bucket=bucket, Key="x.csv", Body=b"a\n1\n", StorageClass=storage)
    place = S3Folder(bucket, "", s3_server.credentials)
    with pytest.raises(
        StorageError, match=r"x\.csv: can't read it, it is archived, as in S3 Glacier; restore"
    ):
        survey(listed(place, [f"s3://{bucket}/x.csv"]), place.credentials)


@pytest.mark.parametrize(("asked", "there"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_name_in_another_unicode_form_is_shown(folder: Folder, asked: str, there: str) -> None:
    own, other = (f"{unicodedata.normalize(form, 'café')}.csv" for form in (asked, there))
    folder.write(other, b"x\n1\n")
    with pytest.raises(PreflightError) as caught:
        names_of(folder, own)
    assert str(caught.value) == f"source: nothing is at {folder.uri}/{own}; did you mean {other!a}?"
    assert names_of(folder, other) == [other]


def test_glob_lists_no_deeper_than_it_matches(folder: Folder) -> None:
    for name in ("in/a.csv", "in/sub/b.csv", "in/sub/deep/c.csv"):
        folder.write(name, b"x\n1\n")
    assert [entry.path for entry in folder.list("in", 1)] == ["in/a.csv"]
    assert [entry.path for entry in folder.list("in", 2)] == ["in/a.csv", "in/sub/b.csv"]
    assert names_of(folder, "in/*.csv") == ["in/a.csv"]
    assert names_of(folder, "in/*/*.csv") == ["in/sub/b.csv"]
