# SPDX-License-Identifier: Apache-2.0
"""The content of an image and its version, wherever it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.job.media.allowed import ImageAccess
from airflow_provider_raybatch.job.media.load import content_version, fetch, version_of
from airflow_provider_raybatch.job.row import Image
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.image_files import access
from tests.support.refusing_s3 import answering
from tests.support.s3_server import S3Server
from tests.support.web import Answer, Web


@pytest.fixture
def disk(tmp_path: Path) -> ImageAccess:
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


def test_an_image_that_changed_has_a_version_of_its_own(disk: ImageAccess) -> None:
    image = version_of(Image(uri=f"{disk.roots[0]}/a.png"), disk)
    assert fetch(image, disk).version == image.version
    Path(image.uri).write_bytes(b"other")
    assert fetch(image, disk) == Image(b"other", image.uri, content_version(b"other"))


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
