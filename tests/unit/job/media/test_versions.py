# SPDX-License-Identifier: Apache-2.0
"""Versions of the images of many requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_raybatch.job.media.allowed import ImageAccess
from airflow_provider_raybatch.job.media.fetch import content_version
from airflow_provider_raybatch.job.media.versions import versioned
from airflow_provider_raybatch.job.row import Image, Request, RowFailure
from tests.support.faulty_s3 import FaultyS3, faulty
from tests.support.image_files import access
from tests.support.s3_server import S3Server


@pytest.fixture
def disk(tmp_path: Path) -> ImageAccess:
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


def test_requests_keep_their_order(disk: ImageAccess) -> None:
    made = [of(Image(uri=f"{disk.roots[0]}/{number}.png"), Image(content=b"c")) for number in range(40)]
    assert versioned(made, disk) == [
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


def test_a_row_whose_image_has_no_version_fails_alone(disk: ImageAccess) -> None:
    good = Image(uri=f"{disk.roots[0]}/1.png")
    missing, foreign = Image(uri=f"{disk.roots[0]}/none.png"), Image(uri="/etc/passwd")
    large = Image(content=b"x" * (disk.most_bytes + 1))
    found = versioned([of(good), of(good, missing), of(foreign), of(good, large)], disk)
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
