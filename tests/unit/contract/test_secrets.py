# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr, ValidationError

from airflow_provider_raybatch.contract.failures import PreflightError, SpecError
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets, seal, unseal

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
