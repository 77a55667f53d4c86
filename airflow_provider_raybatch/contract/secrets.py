# SPDX-License-Identifier: Apache-2.0
"""Credentials on their way from a connection to the job: never in spec, log or the Jobs API's answers.

They travel as a package of their own, which the job reads from the cluster's store and deletes. Against
those who may call the Jobs API only `seal` helps, with a key that the cluster's nodes hold.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import SecretStr

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.failures import PreflightError, SpecError

SEAL_KEY_VARIABLE = "RAYBATCH_SEAL_KEY"
"""Environment variable of the cluster's nodes that holds the Fernet key, if sealing is wanted."""

_PLAIN, _SEALED = b"raybatch-plain:", b"raybatch-sealed:"


class AwsCredentials(ContractModel):
    """What S3 needs; field names as boto3's.

    :param verify: whether the server's certificate is checked.
    :param ca_certificates: authorities that are trusted besides the system's, as PEM.
    :param addressing_style: how a bucket is named in URLs; by default ``path`` with an `endpoint_url`.
    """

    aws_access_key_id: SecretStr | None = None
    aws_secret_access_key: SecretStr | None = None
    aws_session_token: SecretStr | None = None
    region_name: str | None = None
    endpoint_url: str | None = None
    verify: bool = True
    ca_certificates: str | None = None
    addressing_style: Literal["path", "virtual"] | None = None


class Secrets(ContractModel):
    """Everything secret that a job may need; the Hugging Face token for gated models."""

    aws: AwsCredentials | None = None
    hf_token: SecretStr | None = None

    def revealed(self) -> dict[str, Any]:
        """Plain values, for the wire and for the libraries that use them; never log it."""
        hidden = self.model_dump(exclude_defaults=True)
        revealed: dict[str, Any] = json.loads(json.dumps(hidden, default=SecretStr.get_secret_value))
        return revealed

    def for_no_environment(self) -> Secrets | None:
        """The part that no environment variable of the S3 and Hugging Face libraries says."""
        if self.aws is None:
            return None
        aws = AwsCredentials(**self.aws.model_dump(include={"verify", "ca_certificates", "addressing_style"}))
        return None if aws == AwsCredentials() else Secrets(aws=aws)


def seal(secrets: Secrets, key: str | None) -> bytes:
    """The package's content: sealed where there is a key (see :func:`fernet`), plain otherwise."""
    document = json.dumps(secrets.revealed()).encode()
    return _PLAIN + document if not key else _SEALED + fernet(key).encrypt(document)


def fernet(key: str) -> Any:
    """What seals with a seal key; anything but a Fernet key is a :class:`SpecError`."""
    from cryptography.fernet import Fernet

    try:
        return Fernet(key)
    except ValueError:
        raise SpecError(
            "secret_seal_key: the connection's key is not a Fernet key; make one with "
            "cryptography.fernet.Fernet.generate_key()."
        ) from None


def unseal(content: bytes, key: str | None) -> Secrets:
    """The reverse of :func:`seal`; a missing or another key is a :class:`PreflightError`."""
    if content.startswith(_PLAIN):
        return Secrets.model_validate_json(content[len(_PLAIN) :])
    if not key:
        raise PreflightError(
            f"credentials: they arrived sealed, but the cluster has no key; set {SEAL_KEY_VARIABLE} on its "
            "nodes or remove secret_seal_key from the connection."
        )
    try:
        from cryptography.fernet import Fernet, InvalidToken
    except ImportError:
        raise PreflightError(
            "credentials: they arrived sealed, but the cluster lacks the package 'cryptography'; install it "
            "there."
        ) from None
    try:
        return Secrets.model_validate_json(Fernet(key).decrypt(content[len(_SEALED) :]))
    except (InvalidToken, ValueError):
        raise PreflightError(
            f"credentials: the cluster's {SEAL_KEY_VARIABLE} does not open them; use the connection's "
            "secret_seal_key there."
        ) from None
