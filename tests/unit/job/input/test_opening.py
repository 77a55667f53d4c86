# SPDX-License-Identifier: Apache-2.0
"""Files that are damaged, changed, or behind a URL."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.job.input import opening
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.reading import ROWS, WRITERS, as_jsonl, listing_of, packed, read_all, text_of
from tests.support.s3_server import S3Server
from tests.support.web import Answer, Web


class TestParquet:
    @pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1xxxxPAR1"])
    def test_a_damaged_file_is_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.parquet").write_bytes(content)
        with pytest.raises(
            PreflightError, match=rf"source: {tmp_path}/x.parquet is not a readable Parquet file \("
        ):
            survey(listing_of(tmp_path), None)

    @pytest.mark.parametrize(
        "column",
        [
            pa.Array.from_buffers(
                pa.string(), 2, [None, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff")]
            ),
            pa.array([0, 2**62], pa.timestamp("us")),
        ],
        ids=["no UTF-8", "no date of Python's"],
    )
    def test_a_value_that_python_cannot_have_is_a_bad_row(self, tmp_path: Path, column: pa.Array) -> None:
        pq.write_table(pa.table({"n": [1, 2], "c": column}), tmp_path / "x.parquet")
        _, rows, table = read_all(listing_of(tmp_path))
        assert [isinstance(row, dict) for row in rows] == [True, False]
        assert isinstance(rows[1], BadRow)
        assert rows[1].reason.startswith("column 'c' has a value that can't be read (")
        assert table[0] == rows[0]
        assert table[1] == {"n": None, "c": None}

    def test_views_inside_of_others_are_plain_once_they_are_read(self, tmp_path: Path) -> None:
        """Older versions of pyarrow fail where they are asked how large such columns are."""
        kind = pa.struct([("x", pa.string_view())])
        column = pa.StructArray.from_arrays([pa.array(["a", "b"], pa.string_view())], fields=list(kind))
        pq.write_table(pa.table({"c": column}), tmp_path / "x.parquet")
        listing = listing_of(tmp_path)
        content = Reader(listing, None, None).content(cut(survey(listing, None), 10, None)[0])
        assert isinstance(content, pa.Table)
        assert content.schema.field("c").type == pa.struct([("x", pa.string())])
        assert content["c"].to_pylist() == [{"x": "a"}, {"x": "b"}]


class TestChangedFiles:
    @pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
    @pytest.mark.parametrize("keep", [None, 1, 100], ids=["deleted", "shorter", "short"])
    def test_a_file_that_was_replaced_or_deleted_is_reported(
        self, tmp_path: Path, kind: str, keep: int | None
    ) -> None:
        path = tmp_path / f"x.{kind}"
        path.write_bytes(WRITERS[kind](ROWS))
        listing = listing_of(path)
        found = cut(survey(listing, None), 100, None)
        path.unlink()
        if keep:
            path.write_bytes(WRITERS[kind](ROWS[:keep]))
        with pytest.raises(StorageError, match="changed while the job ran; run the task again") as caught:
            Reader(listing, None, None).read(found[-1])
        assert caught.value.failure_class.retryable

    @pytest.mark.parametrize("form", ["W/{}", "{}"], ids=["weak", "as it is"])
    @pytest.mark.parametrize("stripped", ["", '"'], ids=["quoted", "bare"])
    def test_an_object_is_the_same_whatever_form_its_etag_has(
        self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, form: str, stripped: str
    ) -> None:
        """Gateways and proxies write it in one form in listings, and in another one over an object."""
        place = S3Folder(s3_server.new_bucket(), "", s3_server.credentials)
        place.write("x.jsonl", b'{"a": 1}\n')
        listing = resolve(InputArguments(source=[place.uri]), s3_server.credentials)
        read = S3Folder.read_version

        def read_in_other_form(*arguments: Any) -> tuple[bytes, str]:
            content, version = read(*arguments)
            return content, form.format(version.strip(stripped))

        monkeypatch.setattr(S3Folder, "read_version", read_in_other_form)
        assert survey(listing, s3_server.credentials).rows == 1

    @pytest.mark.parametrize(
        "new",
        [b'{"a": 2}\n' * 10_000, b'{"a": 2}\n' * 200, b"", None],
        ids=["as long", "shorter", "empty", "gone"],
    )
    def test_an_object_changes_between_two_ranges(self, s3_server: S3Server, new: bytes | None) -> None:
        """Each answer tells whose range it is, so that no rows of two versions are mixed."""
        place = S3Folder(s3_server.new_bucket(), "", s3_server.credentials)
        place.write("x.jsonl", b'{"a": 1}\n' * 10_000)
        listing = resolve(InputArguments(source=[place.uri]), s3_server.credentials)
        first, *_, last = cut(survey(listing, s3_server.credentials), 1000, None)
        reader = Reader(listing, None, s3_server.credentials)
        assert len(reader.read(first)) == first.rows
        if new is None:
            place.delete(["x.jsonl"])
        else:
            place.write("x.jsonl", new)
        with pytest.raises(StorageError, match="changed while the job ran"):
            reader.read(last)

    @pytest.mark.parametrize(
        "new", [gzip.compress(b'{"a": 2}\n'), b"no archive"], ids=["an archive", "no archive"]
    )
    def test_a_packed_object_that_is_replaced_while_it_is_read(
        self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, new: bytes
    ) -> None:
        place = S3Folder(s3_server.new_bucket(), "", s3_server.credentials)
        place.write("x.jsonl.gz", gzip.compress(b'{"a": 1}\n'))
        listing = resolve(InputArguments(source=[place.uri]), s3_server.credentials)
        unpack = opening._unpack

        def slowly(*arguments: Any) -> None:
            place.write("x.jsonl.gz", new)
            unpack(*arguments)

        monkeypatch.setattr(opening, "_unpack", slowly)
        monkeypatch.setattr(opening, "SMALL_FILE", 0)  # smaller ones are read at once
        with pytest.raises(StorageError, match="changed while the job ran"):
            survey(listing, s3_server.credentials)


class TestPacked:
    # Damage inside a zstd archive is found only if the archive has a checksum.
    @pytest.mark.parametrize(
        ("packing", "damage"),
        [("gz", "no archive"), ("gz", "cut"), ("gz", "garbled"), ("zst", "no archive"), ("zst", "cut")],
    )
    def test_a_damaged_archive_is_refused(self, tmp_path: Path, packing: str, damage: str) -> None:
        whole = packed(as_jsonl(ROWS) + os.urandom(20_000).hex().encode(), packing)
        content = {
            "no archive": b'{"a": 1}\n',
            "cut": whole[: len(whole) // 2],
            "garbled": whole[:2000] + bytes(byte ^ 0xFF for byte in whole[2000:4000]) + whole[4000:],
        }[damage]
        path = tmp_path / f"x.jsonl.{packing}"
        path.write_bytes(content)
        how = "gzip" if packing == "gz" else "zstd"
        with pytest.raises(PreflightError, match=rf"source: {path} can't be unpacked as {how} \("):
            survey(listing_of(path), None)


class TestWeb:
    @pytest.mark.parametrize("name", ["jsonl", "csv.gz", "parquet"])
    def test_files_behind_a_url(self, web: Web, name: str) -> None:
        kind, _, packing = name.partition(".")
        content = WRITERS[kind](ROWS)
        answer = Answer(packed(content, packing) if packing else content, headers={"ETag": '"1"'})
        url = web.serve(f"https://hub.example/x.{name}", answer)
        _, rows, _ = read_all(listing_of(f"{url}?signature=abc/def.txt"))
        assert rows == ([text_of(row) for row in ROWS] if kind == "csv" else ROWS)

    def test_missing_file_is_a_user_error_without_a_signature(self, web: Web) -> None:
        url = web.serve("https://hub.example/x.jsonl", Answer(status=404))
        with pytest.raises(StorageError) as caught:
            listing_of(f"{url}?signature=secret")
        assert str(caught.value) == f"source: {url} can't be read, the server answered 404."
        assert caught.value.failure_class is FailureClass.USER_ERROR

    def test_a_server_that_is_away_may_come_back(self) -> None:
        with pytest.raises(RaybatchError) as caught:
            listing_of("http://127.0.0.1:9/x.jsonl")
        assert caught.value.failure_class is FailureClass.STORAGE
        assert "can't be read" in str(caught.value)


def test_of_many_packed_files_few_are_kept_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_spool", functools.lru_cache(3)(opening._spool.__wrapped__))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    for number in range(10):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(b'{"x": %d}\n' % number))
    files = resolve(InputArguments(source=[f"{tmp_path}/*.gz"]), None).files
    streams = [opening.open_file(file, None) for file in (*files, *files[::-1])]
    assert [json.loads(stream.read())["x"] for stream in streams] == [*range(10), *range(10)[::-1]]
    for stream in streams:
        stream.close()
    assert len(_open_below(tmp_path / "scratch")) == 3


def _open_below(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open, also those without a name."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one of this listing
            found.append(str(descriptor.readlink()))
    return [name for name in found if name.startswith(str(folder))]


@pytest.mark.parametrize("is_behind_a_url", [False, True])
@pytest.mark.parametrize("end", [lambda: os._exit(1), lambda: os.kill(os.getpid(), signal.SIGKILL)])
def test_a_process_that_is_killed_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, web: Web, is_behind_a_url: bool, end: Callable[[], None]
) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(as_jsonl(ROWS)))
    url = web.serve("https://hub.example/x.jsonl", Answer(as_jsonl(ROWS), headers={"ETag": '"1"'}))
    (file,) = listing_of(url if is_behind_a_url else tmp_path / "x.jsonl.gz").files
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            opening.open_file(file, None).read()
            (tmp_path / "read").touch()
        end()
    os.waitpid(child, 0)
    assert (tmp_path / "read").exists()
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("checksums", [True, False])
def test_damaged_pages_are_reported_with_file_and_column(tmp_path: Path, checksums: bool) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"id": range(5000), "text": [f"row {number} " * 5 for number in range(5000)]})
    pq.write_table(table, path, compression="none" if checksums else "snappy", write_page_checksum=checksums)
    place = pq.ParquetFile(path).metadata.row_group(0).column(1).data_page_offset
    content = bytearray(path.read_bytes())
    content[place + 100 : place + 160] = b"\xff" * 60
    path.write_bytes(content)
    listing = listing_of(path)
    (chunk,) = cut(survey(listing, None), 5000, None)
    with pytest.raises(StorageError) as caught:
        Reader(listing, ["id"], None).read(chunk)
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert str(caught.value).startswith(
        f"source: {path} is damaged, column 'text' of row group 0 can't be decoded ("
    )
    assert str(caught.value).endswith("); write the file again.")
    assert Reader(listing, ["id"], None, whole=False).read(chunk).rows[-1] == {"id": 4999}
