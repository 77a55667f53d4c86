# SPDX-License-Identifier: Apache-2.0
"""The images of a row: fetched, decoded, and told from others by their versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_raybatch.job.media.allowed import ImageAccess
from airflow_provider_raybatch.job.media.load import (
    Loaded,
    content_version,
    fetch,
    load,
    version_of,
    versioned,
)
from airflow_provider_raybatch.job.row import Image, Request, RowFailure
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.faulty_s3 import FaultyS3, faulty
from tests.support.image_files import access, bomb, image_file
from tests.support.refusing_s3 import answering
from tests.support.s3_server import S3Server
from tests.support.web import Answer, Web


@pytest.fixture
def folder(tmp_path: Path) -> ImageAccess:
    (tmp_path / "a.png").write_bytes(b"content")
    return access(roots=(str(tmp_path),))


def test_a_url_has_the_version_of_its_content(web: Web) -> None:
    uri = web.serve("https://hub.example/a.png", Answer(b"content", headers={"ETag": '"1"'}))
    allowed = access(hosts=frozenset({"hub.example"}))
    assert fetch(Image(uri=uri), allowed) == Image(b"content", uri, content_version(b"content"))
    assert version_of(Image(uri=uri), allowed) == Image(b"", uri, content_version(b"content"))


def test_an_object_has_the_version_that_s3_tells(s3_server: S3Server) -> None:
    pytest.importorskip("obstore")
    bucket = s3_server.new_bucket()
    s3_server.client().put_object(Bucket=bucket, Key="img/a.png", Body=b"content")
    allowed = access(roots=(f"s3://{bucket}",), credentials=s3_server.credentials)
    image = Image(uri=f"s3://{bucket}/img/a.png")
    fetched = fetch(image, allowed)
    assert fetched.content == b"content"
    assert fetched.version == "etag:9a0364b9e99bb480dd25e1f0284c8555:7"
    assert version_of(image, allowed) == Image(b"", image.uri, fetched.version)


def test_an_object_without_etag_has_that_of_its_content() -> None:
    pytest.importorskip("obstore")
    with answering(200, "content") as url:
        allowed = access(roots=("s3://lake",), credentials=S3Server(url).credentials)
        made = version_of(Image(uri="s3://lake/a.png"), allowed)
    assert made == Image(b"", "s3://lake/a.png", content_version(b"content"))


def test_an_image_that_changed_has_a_version_of_its_own(folder: ImageAccess) -> None:
    image = version_of(Image(uri=f"{folder.roots[0]}/a.png"), folder)
    assert fetch(image, folder).version == image.version
    Path(image.uri).write_bytes(b"other")
    assert fetch(image, folder) == Image(b"other", image.uri, content_version(b"other"))


@pytest.mark.usefixtures("brief")
def test_public_errors_of_stores_name_no_reference(tmp_path: Path) -> None:
    """The reference is the row's, and a log of a job with ``report_samples=0`` quotes no row."""
    pytest.importorskip("obstore")
    root, name = str(tmp_path / "not-mounted"), "alice-passport.png"
    with answering(500, name) as url:
        allowed = access(
            roots=("s3://lake", root),
            hosts=frozenset({"no-such-host.invalid"}),
            credentials=S3Server(url).credentials,
            timeout=0.1,
        )
        for place in ("s3://lake", root, "https://no-such-host.invalid"):
            for call in (fetch, version_of):
                with pytest.raises(StorageError) as caught:
                    call(Image(uri=f"{place}/{name}"), allowed)
                assert name not in caught.value.public
                assert place.rpartition("/")[2] in caught.value.public


@pytest.fixture
def disk(tmp_path: Path) -> ImageAccess:
    pytest.importorskip("PIL")
    (tmp_path / "red.png").write_bytes(image_file("red"))
    (tmp_path / "text.png").write_bytes(b"text")
    return access(roots=(str(tmp_path),), most_pixels=48)


def reason(images: list[Image], allowed: ImageAccess) -> str:
    failure = load(images, allowed)
    assert isinstance(failure, RowFailure)
    assert failure.step == "media"
    return failure.reason


def test_images_come_in_order_with_versions(disk: ImageAccess) -> None:
    uri, blue = f"{disk.roots[0]}/red.png", image_file("blue")
    loaded = load([Image(content=blue), Image(uri=uri)], disk)
    assert isinstance(loaded, Loaded)
    assert [pixels[0, 0].tolist() for pixels in loaded.pixels] == [[0, 0, 255], [255, 0, 0]]
    assert loaded.images == (
        Image(blue, "", content_version(blue)),
        Image(b"", uri, content_version(image_file("red"))),
    )


def test_a_reason_names_the_image(disk: ImageAccess) -> None:
    good, root = Image(content=image_file()), disk.roots[0]
    assert reason([good, Image(uri=f"{root}/text.png")], disk).startswith(
        f"{root}/text.png: the image is in a"
    )
    assert reason([good, Image(uri=f"{root}/none.png")], disk).startswith(f"{root}/none.png can't be read")
    assert reason([good, Image(content=b"text")], disk).startswith("image 2 of 2: the image is in a format")
    assert reason([Image(content=b"text")], disk).startswith("the image is in a format")
    assert reason([Image(uri="/etc/passwd")], disk).startswith("/etc/passwd is not below image_roots")


def test_a_root_that_is_away_is_not_the_rows_failure(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        load([Image(uri=f"{tmp_path}/none/a.png")], access(roots=(f"{tmp_path}/none",)))


def test_a_reference_to_a_bomb_fails_the_row(disk: ImageAccess) -> None:
    (Path(disk.roots[0]) / "bomb.png").write_bytes(bomb(7, 7))
    assert "bomb.png: the image has more than 48 pixels" in reason(
        [Image(uri=f"{disk.roots[0]}/bomb.png")], disk
    )


@pytest.fixture
def numbered(tmp_path: Path) -> ImageAccess:
    for number in range(40):
        (tmp_path / f"{number}.png").write_bytes(f"content {number}".encode())
    return access(roots=(str(tmp_path),))


@pytest.fixture
def lake(s3_server: S3Server) -> Iterator[tuple[FaultyS3, ImageAccess, str]]:
    """A proxy that counts requests, and a bucket behind it with two names of one content."""
    bucket = s3_server.new_bucket()
    for key in ("img/a.png", "img/copy.png"):
        s3_server.client().put_object(Bucket=bucket, Key=key, Body=b"content")
    with faulty(s3_server) as proxy:
        yield (
            proxy,
            access(roots=(f"s3://{bucket}/img",), credentials=proxy.api.credentials),
            f"s3://{bucket}/img",
        )


def of(*images: Image) -> Request:
    return Request(prompt="x", images=images)


def test_requests_keep_their_order(numbered: ImageAccess) -> None:
    made = [of(Image(uri=f"{numbered.roots[0]}/{number}.png"), Image(content=b"c")) for number in range(40)]
    assert versioned(made, numbered) == [
        of(
            Image(uri=one.images[0].uri, version=content_version(f"content {number}".encode())),
            Image(content=b"c", version=content_version(b"c")),
        )
        for number, one in enumerate(made)
    ]


def test_what_has_no_images_stays_as_it_is() -> None:
    failure, request = RowFailure("read", "no"), Request(prompt="x")
    found = versioned([failure, request], access())
    assert found[0] is failure
    assert found[1] is request


def test_a_row_whose_image_has_no_version_fails_alone(numbered: ImageAccess) -> None:
    good = Image(uri=f"{numbered.roots[0]}/1.png")
    missing, foreign = Image(uri=f"{numbered.roots[0]}/none.png"), Image(uri="/etc/passwd")
    large = Image(content=b"x" * (numbered.most_bytes + 1))
    found = versioned([of(good), of(good, missing), of(foreign), of(good, large)], numbered)
    assert isinstance(found[0], Request)
    failures = [one for one in found if isinstance(one, RowFailure)]
    assert [failure.step for failure in failures] == ["media"] * 3
    assert "none.png can't be read" in failures[0].reason
    assert failures[1].reason.startswith("/etc/passwd is not below image_roots")
    assert failures[2].reason.startswith("image 2 of 2: the image has more than the 100,000 bytes")


def test_each_object_is_asked_for_once_and_not_fetched(lake: tuple[FaultyS3, ImageAccess, str]) -> None:
    proxy, allowed, root = lake
    made = [
        of(Image(uri=f"{root}/a.png")),
        of(Image(uri=f"{root}/copy.png"), Image(uri=f"{root}/a.png")),
    ] * 20
    found = versioned(made, allowed)
    images = [image for one in found if isinstance(one, Request) for image in one.images]
    assert len({image.version for image in images}) == 1  # under another name it is the same image
    assert {image.content for image in images} == {b""}
    assert Counter(call.method for call in proxy.calls) == {"HEAD": 2}
