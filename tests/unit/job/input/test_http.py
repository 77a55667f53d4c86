# SPDX-License-Identifier: Apache-2.0
"""Versions and sizes of files behind a URL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.job.input import http, opening
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.reading import listing_of, packed
from tests.support.web import Answer, Web

URL = "https://hub.example/x.jsonl"
OLD, NEW = b'{"a": 1}\n', b'{"a": 2}\n'
DATE = "Thu, 26 Nov 2026 10:00:00 GMT"
LONG_AGO = {"Last-Modified": "Thu, 26 Nov 2026 09:00:00 GMT", "Date": DATE}
JUST_NOW = {"Last-Modified": "Thu, 26 Nov 2026 09:59:30 GMT", "Date": DATE}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Answer(OLD, headers={"ETag": '"1"'}), Answer(NEW, headers={"ETag": '"2"'})),
        (Answer(OLD, headers={"ETag": '"1"'}), Answer(OLD + NEW, headers={"ETag": '"1"'})),
        (Answer(OLD, headers={"ETag": '"1"'}), Answer(NEW, headers={})),
        (Answer(OLD, headers=LONG_AGO), Answer(NEW, headers=JUST_NOW)),
        (Answer(OLD, headers=LONG_AGO), Answer(OLD + NEW, headers=LONG_AGO)),
    ],
    ids=["tag", "length", "no tag", "date", "length, date"],
)
@pytest.mark.parametrize("is_new_for_the_replica", [False, True])
def test_a_file_that_changes_is_noticed(
    web: Web, old: Answer, new: Answer, is_new_for_the_replica: bool
) -> None:
    """Between listing and preflight's reading, or between that and a replica's, which has its own process."""
    web.serve(URL, old)
    listing = listing_of(URL)
    if not is_new_for_the_replica:
        web.serve(URL, new)
        with pytest.raises(StorageError, match="changed while the job ran; run the task again"):
            survey(listing, None)
        return
    (chunk,) = cut(survey(listing, None), 10, None)
    opening._spool.cache_clear()
    web.serve(URL, new)
    with pytest.raises(StorageError, match="changed while the job ran; run the task again") as caught:
        Reader(listing, None, None).read(chunk)
    assert caught.value.failure_class is FailureClass.STORAGE


def test_a_file_without_a_version_is_refused(web: Web) -> None:
    web.serve(URL, Answer(OLD, headers={}))
    with pytest.raises(StorageError) as caught:
        listing_of(f"{URL}?signature=1")
    assert str(caught.value) == (
        f"source: {URL} has no version, neither an ETag nor a Last-Modified, so it may change while the job "
        "reads it; copy it into a bucket, or onto a disk that all nodes see."
    )
    assert caught.value.failure_class is FailureClass.USER_ERROR


def test_a_file_written_just_now_is_read_by_a_retry(web: Web) -> None:
    """A second write within the second of the first would leave the same Last-Modified."""
    web.serve(URL, Answer(OLD, headers=JUST_NOW))
    with pytest.raises(StorageError, match="a retry in a minute reads it") as caught:
        listing_of(URL)
    assert caught.value.failure_class is FailureClass.STORAGE


def test_a_download_that_ends_early_is_no_file(web: Web) -> None:
    web.serve(URL, Answer(OLD, length=len(OLD) + 1))
    with pytest.raises(StorageError, match=r"only 9 of 10 bytes came") as caught:
        survey(listing_of(URL), None)
    assert caught.value.failure_class is FailureClass.STORAGE


@pytest.mark.parametrize("headers", [{"ETag": '"1"'}, {"ETag": 'W/"1"'}, LONG_AGO])
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_a_file_that_stays_is_read(web: Web, headers: dict[str, str], name: str) -> None:
    url = web.serve(
        f"https://hub.example/{name}",
        Answer(packed(OLD, "gz") if name.endswith("gz") else OLD, headers=headers),
    )
    listing = listing_of(url)
    (chunk,) = cut(survey(listing, None), 10, None)
    opening._spool.cache_clear()
    assert Reader(listing, None, None).read(chunk).rows == [{"a": 1}]
    assert listing_of(url).digest == listing.digest


def test_untrusted_certificate_is_told_with_its_remedy(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.serve(URL, Answer(OLD))
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    with pytest.raises(StorageError) as caught:
        listing_of(URL)
    assert "its certificate is not trusted (unable" in str(caught.value)
    assert "set SSL_CERT_FILE on the nodes to the authority's PEM file." in str(caught.value)
    assert caught.value.failure_class is FailureClass.USER_ERROR


def test_names_that_are_not_ascii_are_read(web: Web) -> None:
    web.serve("https://hub.example/t%C3%A4glich%20a/x.jsonl", Answer(OLD))
    assert len(survey(listing_of("https://hub.example/täglich a/x.jsonl?day=ä"), None).schemas) == 1


@pytest.mark.parametrize("url", ["http://hub.example:99999/x.jsonl", "http://[::1/x.jsonl"])
def test_what_is_not_a_url_is_a_user_error(web: Web, url: str) -> None:
    with pytest.raises(StorageError, match="is not a URL that can be read") as caught:
        http.size_and_version(f"{url}?signature=1")
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert "signature" not in str(caught.value)


class TestBounds:
    @pytest.mark.parametrize("length", [-1, None])
    def test_a_file_that_is_too_large_is_refused(
        self, web: Web, monkeypatch: pytest.MonkeyPatch, length: int | None
    ) -> None:
        """Whether the server says so before, or keeps silent."""
        monkeypatch.setattr(http, "MOST_BYTES", len(OLD) - 1)
        web.serve(URL, Answer(OLD, length=length))
        with pytest.raises(StorageError) as caught:
            survey(listing_of(f"{URL}?signature=1"), None)
        assert caught.value.failure_class is FailureClass.USER_ERROR
        assert str(caught.value) == (
            f"source: {URL} has more than 0 GiB, the most that is read from a URL; copy it into a bucket, or "
            "split it."
        )

    @pytest.mark.parametrize("packing", ["gz", "zst"])
    @pytest.mark.parametrize("is_behind_a_url", [False, True])
    def test_a_bomb_is_refused(
        self,
        web: Web,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        packing: str,
        is_behind_a_url: bool,
    ) -> None:
        monkeypatch.setattr(opening, "MOST_UNPACKED", 2**21)
        bomb = packed(b"\n" * 2**23, packing)
        assert len(bomb) < 2**14
        (tmp_path / f"x.jsonl.{packing}").write_bytes(bomb)
        place = str(tmp_path / f"x.jsonl.{packing}")
        if is_behind_a_url:
            place = web.serve(f"{URL}.{packing}", Answer(bomb))
        with pytest.raises(PreflightError, match=r"unpacks to more than 0 GiB; split it"):
            survey(listing_of(place), None)
