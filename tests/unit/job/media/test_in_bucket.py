# SPDX-License-Identifier: Apache-2.0
"""Objects that references name, over a real S3 API."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.media.allowed import BucketObject, ImageAccess
from airflow_provider_raybatch.job.media.stores import object_version, read_object
from airflow_provider_raybatch.job.row import ImageError
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.faulty_s3 import Fault, FaultyS3, after, faulty, first
from tests.support.image_files import access
from tests.support.refusing_s3 import answering
from tests.support.s3_role import GET, LIST, Right, Role, limited
from tests.support.s3_server import S3Server

pytest.importorskip("obstore")
CONTENT = bytes(range(256)) * 4096
"""1 MiB, which comes in several blocks."""


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    bucket = s3_server.new_bucket()
    for key in ("img/a.png", "img/copy.png"):
        s3_server.client().put_object(Bucket=bucket, Key=key, Body=CONTENT)
    s3_server.client().put_object(Bucket=bucket, Key="img/empty.png", Body=b"")
    return bucket


@pytest.fixture
def allowed(s3_server: S3Server) -> ImageAccess:
    return access(credentials=s3_server.credentials, most_bytes=len(CONTENT))


@pytest.fixture
def role() -> Iterator[tuple[Role, S3Server]]:
    role = Role()
    with limited(role) as server:
        yield role, server


def refused(place: BucketObject, allowed: ImageAccess) -> set[str]:
    """Return why neither the content nor the version is read."""
    said = set()
    for call in (read_object, object_version):
        with pytest.raises(ImageError) as caught:
            call(place, allowed)
        said.add(str(caught.value))
    return said


def test_content_and_version_are_of_the_object(bucket: str, allowed: ImageAccess) -> None:
    content, version = read_object(BucketObject(bucket, "img/a.png"), allowed)
    assert content == CONTENT
    assert version.startswith("etag:")
    assert version.endswith(f":{len(CONTENT)}")
    assert '"' not in version
    assert read_object(BucketObject(bucket, "img/empty.png"), allowed)[0] == b""


def test_a_head_tells_the_same_version(bucket: str, allowed: ImageAccess) -> None:
    for key in ("img/a.png", "img/copy.png"):
        version = read_object(BucketObject(bucket, "img/a.png"), allowed)[1]
        assert object_version(BucketObject(bucket, key), allowed) == version
    assert object_version(BucketObject(bucket, "img/empty.png"), allowed) != version


def test_a_key_is_taken_as_it_is_written(s3_server: S3Server, bucket: str, allowed: ImageAccess) -> None:
    key = "img/a b+ü%20?x=1#y&z.png"
    s3_server.client().put_object(Bucket=bucket, Key=key, Body=b"odd")
    assert read_object(BucketObject(bucket, key), allowed)[0] == b"odd"


def test_a_missing_object_fails_the_row(bucket: str, allowed: ImageAccess) -> None:
    place = BucketObject(bucket, "img/none.png")
    assert refused(place, allowed) == {
        f"s3://{bucket}/img/none.png can't be read, there is no such object; check its key"
    }
    assert refused(BucketObject("no-such-bucket", "img/a.png"), allowed)


@pytest.mark.parametrize(
    "name", ["uploadId=1", "NoSuchUpload", "<Code>InvalidToken</Code>", "169.254.169.254"]
)
def test_a_name_that_reads_like_an_error_fails_its_row(bucket: str, allowed: ImageAccess, name: str) -> None:
    (text,) = refused(BucketObject(bucket, f"img/{name}"), allowed)
    assert "there is no such object" in text


def test_a_large_object_fails_the_row(bucket: str, s3_server: S3Server) -> None:
    allowed = access(credentials=s3_server.credentials, most_bytes=len(CONTENT) - 1)
    (text,) = refused(BucketObject(bucket, "img/a.png"), allowed)
    assert "has more than the 1,048,575 bytes of max_image_bytes" in text


def test_a_slow_object_fails_the_row(bucket: str, s3_server: S3Server) -> None:
    allowed = access(credentials=s3_server.credentials, most_bytes=len(CONTENT), timeout=1e-9)
    with pytest.raises(ImageError, match="did not arrive within the 1e-09 s of image_timeout"):
        read_object(BucketObject(bucket, "img/a.png"), allowed)


def test_an_object_that_the_role_may_not_read_fails_the_row(bucket: str, role: tuple[Role, S3Server]) -> None:
    rights, server = role
    allowed = access(credentials=server.credentials, most_bytes=len(CONTENT))
    for right in ({Right(LIST, f"{bucket}/*")}, set[Right]()):
        rights.rights = {Right(GET, f"{bucket}/other/*"), *right}
        texts = refused(BucketObject(bucket, "img/a.png"), allowed)
        assert all("check aws_conn_id or the cluster's role" in text for text in texts)
    rights.rights = {Right(GET, f"{bucket}/img/*"), Right(LIST, f"{bucket}/img*")}
    assert read_object(BucketObject(bucket, "img/a.png"), allowed)[0] == CONTENT
    (text,) = refused(BucketObject(bucket, "img/none.png"), allowed)
    assert "there is no such object" in text


@pytest.mark.parametrize("fault", [Fault.ERROR_503, Fault.CUT_ANSWER, Fault.SILENT])
def test_a_fault_of_the_store_is_tried_again(
    proxy: FaultyS3, bucket: str, allowed: ImageAccess, fault: Fault
) -> None:
    proxy.choose = first(fault, 2)
    through = access(credentials=proxy.api.credentials, most_bytes=len(CONTENT))
    assert read_object(BucketObject(bucket, "img/a.png"), through) == read_object(
        BucketObject(bucket, "img/a.png"), allowed
    )


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("fault", [Fault.ERROR_503, Fault.SILENT])
def test_a_store_that_does_not_answer_fails_the_job(s3_server: S3Server, bucket: str, fault: Fault) -> None:
    with faulty(s3_server, after(0, fault)) as proxy:
        through = access(credentials=proxy.api.credentials)
        for call in (read_object, object_version):
            with pytest.raises(StorageError) as caught:
                call(BucketObject(bucket, "img/a.png"), through)
            assert caught.value.failure_class is FailureClass.STORAGE


@pytest.mark.parametrize("call", [read_object, object_version])
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (403, "InvalidToken"),
        (403, "ExpiredToken"),
        (400, "ExpiredToken"),
        (403, "RequestTimeTooSkewed"),
        (401, "Unauthorized"),
    ],
)
def test_credentials_that_are_wrong_fail_the_job(
    call: Callable[[BucketObject, ImageAccess], object], status: int, code: str
) -> None:
    """Also where a HEAD is refused, whose answer has no body and so no code."""
    with answering(status, f"<Error><Code>{code}</Code></Error>") as url:
        allowed = access(credentials=S3Server(url).credentials)
        with pytest.raises(StorageError):
            call(BucketObject("bucket", "img/a.png"), allowed)


def test_a_store_without_etags_tells_no_version() -> None:
    with answering(200, "content") as url:
        allowed = access(credentials=S3Server(url).credentials)
        assert read_object(BucketObject("bucket", "img/a.png"), allowed) == (b"content", "")
