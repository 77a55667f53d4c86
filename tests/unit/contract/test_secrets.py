# SPDX-License-Identifier: Apache-2.0
"""Keys sign orders and nothing else does; credentials travel sealed or plain, and are never shown."""

from __future__ import annotations

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr, ValidationError

from airflow_provider_raybatch.contract.failures import PreflightError, SpecError
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets, seal, unseal
from airflow_provider_raybatch.contract.submission import (
    FollowerCommand,
    key_of_job,
    new_run_key,
    order_package,
    read_order,
    write_order,
)

RUN_KEY = "12" * 32
JOB_KEY = key_of_job(RUN_KEY, "raybatch-x-0")
ORDER = FollowerCommand(attempt=2, nonce="17", deadline=1.5, orphan_timeout=60)


def test_each_submission_has_a_key_of_its_own() -> None:
    keys = {key_of_job(run_key, f"raybatch-x-{k}") for run_key in (RUN_KEY, new_run_key()) for k in range(3)}
    assert len(keys) == 6
    assert all(len(bytes.fromhex(key)) == 32 for key in keys)
    assert key_of_job(RUN_KEY, "raybatch-x-0") == JOB_KEY


def test_an_order_arrives_whole() -> None:
    assert read_order(write_order(ORDER, JOB_KEY), JOB_KEY) == ORDER
    assert JOB_KEY.encode() not in write_order(ORDER, JOB_KEY)
    assert JOB_KEY not in order_package(JOB_KEY)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        ORDER.model_dump_json().encode(),
        b"0" * 32 + b" " + ORDER.model_dump_json().encode(),
        write_order(ORDER, "ab" * 32),
        write_order(ORDER, JOB_KEY).replace(b"1.5", b"9.5"),
        write_order(ORDER, JOB_KEY)[:-1],
    ],
)
def test_unsigned_text_is_not_an_order(content: bytes) -> None:
    assert read_order(content, JOB_KEY) is None


KEY, OTHER = (Fernet.generate_key().decode() for _ in range(2))
SECRETS = Secrets(
    aws=AwsCredentials(
        aws_access_key_id=SecretStr("AKIA"),
        aws_secret_access_key=SecretStr("wJalr"),
        region_name="eu-central-1",
        endpoint_url="http://localhost:9000",
    ),
    hf_token=SecretStr("hf_abc"),
)


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "sealed"])
def test_what_is_sealed_comes_out_whole(key: str | None) -> None:
    assert unseal(seal(SECRETS, key), key) == SECRETS
    assert unseal(seal(Secrets(), key), key) == Secrets()


def test_secrets_show_nothing_when_sealed_or_printed() -> None:
    sealed = seal(SECRETS, KEY).decode()
    shown = sealed + repr(SECRETS) + str(SECRETS) + SECRETS.model_dump_json()
    assert "wJalr" not in shown
    assert "hf_abc" not in shown


def test_errors_show_no_secret() -> None:
    content = seal(SECRETS, None).replace(b'"hf_token"', b'"hf_tokenn"').replace(b'"wJalr"', b'["wJalr"]')
    with pytest.raises(ValidationError) as caught:
        unseal(content, None)
    assert "wJalr" not in str(caught.value)
    assert "hf_abc" not in str(caught.value)


def test_a_bad_seal_key_is_an_error_of_the_connection() -> None:
    with pytest.raises(
        SpecError, match=r"^secret_seal_key: the connection's key is not a Fernet key; make one with "
    ):
        seal(SECRETS, "short")


@pytest.mark.parametrize(
    ("key", "cut", "message"),
    [
        (None, 0, "but the cluster has no key; set RAYBATCH_SEAL_KEY on its nodes"),
        ("", 0, "but the cluster has no key; set RAYBATCH_SEAL_KEY on its nodes"),
        ("short", 0, "RAYBATCH_SEAL_KEY does not open them; use the connection's secret_seal_key"),
        (OTHER, 0, "RAYBATCH_SEAL_KEY does not open them; use the connection's secret_seal_key"),
        (KEY, 3, "RAYBATCH_SEAL_KEY does not open them"),
    ],
    ids=["none", "empty", "short", "another", "damaged content"],
)
def test_what_does_not_open_is_an_error_with_its_remedy(key: str | None, cut: int, message: str) -> None:
    content = seal(SECRETS, KEY)
    with pytest.raises(PreflightError) as caught:
        unseal(content[: len(content) - cut], key)
    assert str(caught.value).startswith("credentials: ")
    assert message in str(caught.value)


def test_revealed_names_only_what_is_there() -> None:
    assert Secrets(aws=AwsCredentials(region_name="x")).revealed() == {"aws": {"region_name": "x"}}
