# SPDX-License-Identifier: Apache-2.0
"""What S3 refuses is told by its cause, at once, and in each operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.storage.errors import StorageError, may_recover
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder

pytest.importorskip("cryptography")
from tests.support.http_server import Authority
from tests.support.refusing_s3 import answering

pytestmark = pytest.mark.usefixtures("once")

OPERATIONS = ["list", "head", "read", "open", "write", "create", "delete"]
REGION = "its bucket lies in another region"
MALFORMED = "AuthorizationHeaderMalformed"
SET_REGION = "set region_name in the extra of the aws connection, or AWS_REGION in the environment"


def place(endpoint_url: str, **fields: Any) -> Folder:
    keys = {"aws_access_key_id": SecretStr("key"), "aws_secret_access_key": SecretStr("secret")}
    return S3Folder("bucket", "out", AwsCredentials(**keys, endpoint_url=endpoint_url, **fields))


def refusal(where: Folder, operation: str) -> StorageError:
    arguments: dict[str, tuple[Any, ...]] = {
        "list": (), "head": ("x",), "read": ("x",), "open": ("x",), "write": ("x", b"1"),
        "create": ("x", b"1"), "delete": (["x"],),
    }  # fmt: skip
    with pytest.raises(StorageError) as caught:
        getattr(where, operation)(*arguments[operation])
    message = str(caught.value)
    assert message.startswith("s3://bucket/out")
    assert "\n" not in message
    assert "Generic S3 error" not in message
    assert "secret" not in message
    assert isinstance(caught.value.__cause__, Exception)
    assert not may_recover(caught.value.__cause__)
    return caught.value


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("status", "code", "rest", "sentence"),
    [
        (301, "PermanentRedirect", "", f"{REGION}; {SET_REGION}."),
        (400, MALFORMED, "<Region>eu-central-1</Region>", f"{REGION} (eu-central-1); {SET_REGION}."),
        (400, "IllegalLocationConstraintException", "", f"{REGION}; {SET_REGION}."),
        (400, "ExpiredToken", "", "the credentials have expired; a retry assumes a role again, but"),
        (403, "RequestTimeTooSkewed", "", "differs from that of S3 by more than 15 minutes; set it, by NTP"),
        (400, "InvalidToken", "", "the credentials are refused (InvalidToken)"),
        (403, "InvalidAccessKeyId", "", "the credentials are refused ("),
        (403, "InvalidObjectState", "", "it is archived, as in S3 Glacier; restore it, or copy it to a"),
    ],
)
def test_a_refusal_is_told_by_its_cause(
    status: int, code: str, rest: str, sentence: str, operation: str
) -> None:
    body = f"<Error><Code>{code}</Code><Message>It says.</Message>{rest}</Error>"
    with answering(status, body) as url:
        error = refusal(place(url), operation)
    assert sentence in str(error)
    passes = code in {"ExpiredToken", "RequestTimeTooSkewed"}
    assert error.failure_class is (FailureClass.STORAGE if passes else FailureClass.USER_ERROR)


@pytest.mark.parametrize("operation", ["list", "read", "create"])
@pytest.mark.parametrize(
    ("host", "days", "told", "sentence"),
    [
        ("localhost", 1, False, "its certificate can't be used (UnknownIssuer); set verify in the extra of"),
        ("localhost", -1, True, "its certificate can't be used (Expired); set verify in the extra of"),
        ("other.example", 1, True, "its certificate can't be used (NotValidForName); set verify in the"),
    ],
)
def test_a_certificate_is_told_by_what_is_wrong_with_it(
    tmp_path: Path, host: str, days: int, told: bool, sentence: str, operation: str
) -> None:
    authority = Authority(tmp_path)
    with answering(404, pem=authority.server(host, days=days)) as url:
        error = refusal(place(url, ca_certificates=authority.pem.read_text() if told else None), operation)
    assert sentence in str(error)
    assert error.failure_class is FailureClass.USER_ERROR


@pytest.mark.parametrize("way", ["ca_certificates", "AWS_CA_BUNDLE", "verify"])
def test_a_private_authority_can_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    authority = Authority(tmp_path)
    fields: dict[str, Any] = (
        {"ca_certificates": authority.pem.read_text()} if way == "ca_certificates" else {}
    )
    fields |= {"verify": False} if way == "verify" else {}
    if way == "AWS_CA_BUNDLE":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.pem))
    with answering(404, pem=authority.server()) as url:
        assert place(url, **fields).head("x") is None


def test_a_server_without_tls_is_named() -> None:
    with answering(404) as url:
        error = refusal(place(url.replace("http://", "https://")), "read")
    assert "it speaks http and not https; correct endpoint_url." in str(error)
