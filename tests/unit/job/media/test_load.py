# SPDX-License-Identifier: Apache-2.0
"""All images of a row, or why the row has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.job.media.allowed import ImageAccess
from airflow_provider_raybatch.job.media.fetch import content_version
from airflow_provider_raybatch.job.media.load import Loaded, load
from airflow_provider_raybatch.job.row import Image, RowFailure
from tests.support.image_files import access, bomb, image_file

pytest.importorskip("PIL")


@pytest.fixture
def disk(tmp_path: Path) -> ImageAccess:
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


def test_a_reference_to_a_bomb_fails_the_row(disk: ImageAccess) -> None:
    (Path(disk.roots[0]) / "bomb.png").write_bytes(bomb(7, 7))
    assert "bomb.png: the image has more than 48 pixels" in reason(
        [Image(uri=f"{disk.roots[0]}/bomb.png")], disk
    )
