# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr, ValidationError

from airflow_provider_raybatch.contract.failures import PreflightError, SpecError
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets, seal, unseal

SECRETS = Secrets(
    aws=AwsCredentials(
        aws_access_key_id=SecretStr("AKIA"),
        aws_secret_access_key=SecretStr("wJalr"),
        region_name="eu-central-1",
        endpoint_url="http://localhost:9000",
    ),
    hf_token=SecretStr("hf_abc"),
)


@pytest.mark.parametrize("key", [None, Fernet.generate_key().decode()], ids=["open", "sealed"])
def test_what_is_sealed_comes_out_whole(key: str | None) -> None:
    assert unseal(seal(SECRETS, key), key) == SECRETS
    assert unseal(seal(Secrets(), key), key) == Secrets()


def test_sealed_content_shows_nothing() -> None:
    content = seal(SECRETS, Fernet.generate_key().decode())
    assert b"wJalr" not in content
    assert b"hf_abc" not in content


def test_secrets_show_nothing_when_printed() -> None:
    assert "wJalr" not in repr(SECRETS) + str(SECRETS) + SECRETS.model_dump_json()


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
    ("key", "message"),
    [
        (None, "but the cluster has no key; set RAYBATCH_SEAL_KEY on its nodes"),
        ("", "but the cluster has no key; set RAYBATCH_SEAL_KEY on its nodes"),
        pytest.param(
            Fernet.generate_key().decode(),
            "RAYBATCH_SEAL_KEY does not open them; use the connection's secret_seal_key",
            id="another",
        ),
        ("short", "RAYBATCH_SEAL_KEY does not open them; use the connection's secret_seal_key"),
    ],
)
def test_wrong_seal_key_is_an_error_with_its_remedy(key: str | None, message: str) -> None:
    with pytest.raises(PreflightError) as caught:
        unseal(seal(SECRETS, Fernet.generate_key().decode()), key)
    assert str(caught.value).startswith("credentials: ")
    assert message in str(caught.value)


def test_damaged_content_is_refused() -> None:
    key = Fernet.generate_key().decode()
    content = seal(SECRETS, key)
    with pytest.raises(PreflightError, match="does not open them"):
        unseal(content[:-3], key)


def test_revealed_names_only_what_is_there() -> None:
    assert Secrets(aws=AwsCredentials(region_name="x")).revealed() == {"aws": {"region_name": "x"}}
