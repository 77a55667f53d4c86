# SPDX-License-Identifier: Apache-2.0
"""Which references may be read."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.arguments.images import ImageLimits
from airflow_provider_raybatch.job.input.listing import Listing, SourceFile
from airflow_provider_raybatch.job.media.allowed import (
    BucketObject,
    DiskFile,
    ImageAccess,
    WebFile,
    image_access,
)
from airflow_provider_raybatch.job.row import ImageError
from tests.support.approved import AssertSentences
from tests.support.image_files import access

HOST = "images.example"
ALLOWED = access(roots=("/data/img", "s3://lake/img"), hosts=frozenset({HOST}))


def of_files(*uris: str, **fields: Any) -> ImageAccess:
    """Return what a job may read whose source has these files."""
    files = tuple(SourceFile(uri, 1, "1") for uri in uris)
    return image_access(ImageLimits(**fields), Listing("jsonl", files), None)


def refused(uri: str, allowed: ImageAccess = ALLOWED) -> str:
    with pytest.raises(ImageError) as caught:
        allowed.located(uri)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("/data/img/a.png", DiskFile("/data/img/a.png", ("/data/img",))),
        ("/data//img///b/a.png", DiskFile("/data/img/b/a.png", ("/data/img",))),
        ("file:///data/img/a%20b.png", DiskFile("/data/img/a b.png", ("/data/img",))),
        ("/data/img/a%20b?.png", DiskFile("/data/img/a%20b?.png", ("/data/img",))),
        ("/data/img/..a/a..png", DiskFile("/data/img/..a/a..png", ("/data/img",))),
        ("s3://lake/img/a.png", BucketObject("lake", "img/a.png")),
        ("s3://lake/img/https%3A%2F%2Fx#1.png", BucketObject("lake", "img/https%3A%2F%2Fx#1.png")),
        (f"https://{HOST}/a/../b.png?size=1#x", WebFile(f"https://{HOST}/a/../b.png?size=1")),
        (f"https://{HOST.upper()}:443/ü b.png", WebFile(f"https://{HOST}/%C3%BC%20b.png")),
    ],
)
def test_an_allowed_reference_is_located(uri: str, place: object) -> None:
    assert ALLOWED.located(uri) == place


def test_any_other_reference_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(refused)


def test_a_refusal_shows_neither_login_nor_signature() -> None:
    for uri in (
        "https://user:word@other.example/a.png?signature=1",
        "https://user:word@other.example:x/a.png?signature=1",
        "https://other.example/a.png?signature=1",
    ):
        assert not re.search("word|signature", refused(uri))


def test_roots_are_by_default_the_folders_of_the_source() -> None:
    allowed = of_files("/data/a/x.jsonl", "/data/a/y.jsonl", "s3://lake/b/x.jsonl", "s3://whole/x.jsonl")
    assert allowed.roots == ("/data/a", "s3://lake/b", "s3://whole")
    for uri in ("/data/a/b/1.png", "s3://lake/b/1.png", "s3://whole/1.png"):
        allowed.located(uri)
    refused("s3://lake/1.png", allowed)


def test_a_source_elsewhere_has_no_root() -> None:
    allowed = of_files("https://images.example/a/x.jsonl", "hf://datasets/a/b/x.jsonl", "/x.jsonl")
    assert allowed.roots == ()
    for uri in ("https://images.example/a/1.png", "/a/1.png", "/1.png"):
        refused(uri, allowed)
    assert "is not below image_roots, which are none here" in refused("/1.png", allowed)


def test_image_roots_and_image_hosts_replace_the_default() -> None:
    allowed = of_files(
        "/data/a/x.jsonl",
        image_roots=["file:///pictures/", "s3://lake/b/", "/"],
        image_hosts=["Images.Example"],
        max_image_bytes=5,
        max_image_pixels=6,
        image_timeout=7,
    )
    assert allowed.roots == ("/pictures", "s3://lake/b", "/")
    for uri in ("/pictures/1.png", "/etc/1.png", "s3://lake/b/1.png", "https://images.example/1.png"):
        allowed.located(uri)
    assert (allowed.most_bytes, allowed.most_pixels, allowed.timeout) == (5, 6, 7.0)
    assert of_files("/data/a/x.jsonl", image_roots=[]).roots == ()


NAMES = st.sampled_from([
    "img", "img-secret", "im", "lake", "data", "..", ".", "...", "", "%2e%2e", ".%2E", "%2e", "%252e%252e",
    "..%2f..", "%2fetc", "a.png", "ü", "a b", "?", "\\..", HOST,
])  # fmt: skip
STARTS = st.sampled_from([
    "/", "/data/img/", "file:///", "file:///data/img/", "file://localhost/data/img/", "s3://lake/",
    "s3://lake/img/", "s3://lake", "s3://other/img/", f"https://{HOST}/", f"https://{HOST}", "https://",
    f"https://a@{HOST}/", "http://", "", "file:/data/img/", "S3://lake/img/",
])  # fmt: skip


WEB = re.compile(rf"https://{re.escape(HOST)}(:443|:)?([/?#].*)?", re.DOTALL)
FOLDERS = (("s3://lake/", ("img",)), ("file:///", ("data", "img")), ("/", ("data", "img")))


def may_be_read(uri: str) -> bool:
    """Say it in another way: by the names that a file system would resolve, and a pattern for URLs."""
    if WEB.fullmatch(uri):
        return True
    prefix, root = next((one for one in FOLDERS if uri.startswith(one[0])), ("", ()))
    path = uri.removeprefix(prefix)
    if not prefix or path.endswith("/"):
        return False
    if prefix == "file:///":
        if "#" in path:
            return False
        path = unquote(path)
    if prefix == "s3://lake/" and "//" in f"/{path}":
        return False
    if {".", ".."} & {one for name in path.split("/") for one in unquote(name).split("/")}:
        return False
    parts = PurePosixPath(f"/{path}").parts[1:]
    return parts[: len(root)] == root and len(parts) > len(root) and path == path.rstrip()


@given(STARTS, st.lists(NAMES, max_size=5), st.sampled_from(["", "/", "#", "?x"]))
@example("s3://lake/img/", ["..", "img", "a.png"], "")
@example("/data/img/", ["..", "img", "a.png"], "")
@settings(max_examples=200)
def test_check_agrees_with_resolving_the_names(start: str, names: list[str], end: str) -> None:
    uri = start + "/".join(names) + end
    try:
        ALLOWED.located(uri)
        passed = True
    except ImageError:
        passed = False
    assert passed == may_be_read(uri), uri


@given(st.text(max_size=40))
def test_no_text_does_anything_but_pass_or_be_refused(text: str) -> None:
    for uri in (text, f"/data/img/{text}", f"s3://lake/img/{text}", f"https://{text}", f"file:///{text}"):
        try:
            place: object = ALLOWED.located(uri)
        except ImageError as error:
            place = error
        assert isinstance(place, (DiskFile, BucketObject, WebFile, ImageError))
