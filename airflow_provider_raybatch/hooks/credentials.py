# SPDX-License-Identifier: Apache-2.0
"""Credentials from Airflow connections, as a job takes them; masked in logs once they are known."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
from airflow.sdk.log import mask_secret
from pydantic import SecretStr

from airflow_provider_raybatch.coercion import boolean, is_absent
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets
from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.exceptions import RayBatchUnavailableException, RayConnectionError
from airflow_provider_raybatch.hooks.lookup import server_lookup

if TYPE_CHECKING:
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    from airflow.providers.amazon.aws.utils.connection_wrapper import AwsConnectionWrapper
    from airflow.sdk import Connection

_SIGNATURES = (None, "v4", "s3v4")
_REFUSED = {
    "proxies": ", or set HTTPS_PROXY on the cluster's nodes and leave it to them",
    "proxies_config": "",
    "client_cert": "",
    "use_dualstack_endpoint": ", or set endpoint_url",
    "use_fips_endpoint": ", or set endpoint_url",
}
"""Botocore's settings of where and how a request goes, each with what else helps. Others that have no effect
are about times, retries and pools, and a job has its own."""
_S3_REFUSED = {"use_accelerate_endpoint", "use_dualstack_endpoint", "use_arn_region"}


class S3Options(TypedDict):
    """Fields of ``AwsCredentials``."""

    verify: bool
    ca_certificates: str | None
    addressing_style: Any


def s3_options(conn_id: str, connection: AwsConnectionWrapper) -> S3Options:
    """What `verify` and `config_kwargs` in the connection's extra mean.

    :raises RayConnectionError: a job can't honour a setting.
    """
    given: Mapping[str, Any] = connection.extra_config.get("config_kwargs") or {}
    s3: Mapping[str, Any] = given.get("s3") or {}
    wrong = {name: remedy for name, remedy in _REFUSED.items() if given.get(name)}
    wrong |= {f"s3.{name}": "" for name in _S3_REFUSED if s3.get(name)}
    if given.get("signature_version") not in _SIGNATURES:
        wrong["signature_version"] = ", since it signs with s3v4"
    if wrong:
        name, remedy = next(iter(wrong.items()))
        raise RayConnectionError(
            f"Connection {conn_id!r}, field config_kwargs in extra: a job can't honour {name!r}; remove it"
            f"{remedy}."
        )
    style = s3.get("addressing_style")
    verify, authorities = _verify(conn_id, connection.verify)
    return S3Options(
        verify=verify,
        ca_certificates=authorities,
        addressing_style=style if style in {"path", "virtual"} else None,
    )


def _verify(conn_id: str, value: bool | str | None) -> tuple[bool, str | None]:
    """Whether certificates are checked, and the authorities of a PEM file."""
    if value is None:
        return True, None
    try:
        return boolean(value, "verify"), None
    except SpecError:
        pass
    try:
        # Bundles have comments in any encoding.
        authorities = Path(str(value)).read_text(encoding="utf-8", errors="replace")
        ssl.create_default_context(cafile=str(value))
    except (OSError, ValueError) as error:
        raise RayConnectionError(
            f"Connection {conn_id!r}, field verify in extra: {value!r} is not a PEM file on this machine; "
            "correct the path, or use true or false."
        ) from error
    return True, authorities


_OF_THE_WORKER = frozenset({"env", "container-role", "iam-role"})
"""Where boto3 looks next if the profile that a connection names has no credentials."""
_OF_BAD_EXTRAS = (AirflowException, LookupError, NotImplementedError, TypeError, ValueError)
"""What the amazon provider raises about extras that it can't use."""


def job_secrets(aws_conn_id: str | None, hf_conn_id: str | None) -> Secrets | None:
    """What a job needs besides the cluster's own identity; ``None`` where no connection is named.

    :raises RayConnectionError: a connection doesn't exist or has no credentials.
    """
    aws = None if aws_conn_id is None or is_absent(aws_conn_id) else aws_credentials(aws_conn_id)
    hf_token = None if hf_conn_id is None or is_absent(hf_conn_id) else _hf_token(hf_conn_id)
    return None if aws is None and hf_token is None else Secrets(aws=aws, hf_token=hf_token)


def as_environment(secrets: Secrets | None) -> dict[str, str]:
    """Credentials for a private Ray, under the names that S3 and Hugging Face libraries read."""
    if secrets is None:
        return {}
    known = secrets.revealed()
    aws = known.get("aws", {})
    values = {
        "AWS_ACCESS_KEY_ID": aws.get("aws_access_key_id"),
        "AWS_SECRET_ACCESS_KEY": aws.get("aws_secret_access_key"),
        "AWS_SESSION_TOKEN": aws.get("aws_session_token"),
        "AWS_REGION": aws.get("region_name"),
        "AWS_ENDPOINT_URL": aws.get("endpoint_url"),
        "HF_TOKEN": known.get("hf_token"),
    }
    return {name: value for name, value in values.items() if value}


def aws_credentials(aws_conn_id: str) -> AwsCredentials:
    """The connection's credentials as they are now, of its role if it names one; never the worker's own.

    They are frozen: a job that outlives a short session needs the cluster's own identity instead.

    :raises RayConnectionError: the connection doesn't exist or has no credentials, or Airflow's amazon
        provider is missing.
    """
    # Asked first: for a missing connection the amazon provider falls back to the worker's own identity.
    _existing(aws_conn_id, "aws_conn_id")
    hook = _amazon_hook(aws_conn_id)
    with _one_sentence(aws_conn_id):
        with server_lookup():
            named = hook.conn_config
        session = hook.get_session()
        found = session.get_credentials() if _names_an_identity(named) else None
        # A role is assumed here.
        frozen = found.get_frozen_credentials() if found and found.method not in _OF_THE_WORKER else None
    if frozen is None:
        raise RayConnectionError(
            f"Connection {aws_conn_id!r}, fields login and password: it names no AWS identity, and the "
            "worker's own is never sent; set keys, role_arn or profile_name, or leave aws_conn_id out (None) "
            "to use the identity of the cluster's nodes."
        )
    for secret in (frozen.secret_key, frozen.token):
        if secret:
            mask_secret(secret)
    return AwsCredentials(
        aws_access_key_id=SecretStr(frozen.access_key),
        aws_secret_access_key=SecretStr(frozen.secret_key),
        aws_session_token=SecretStr(frozen.token) if frozen.token else None,
        region_name=hook.region_name
        or session.region_name
        or getattr(named.botocore_config, "region_name", None),
        endpoint_url=named.get_service_endpoint_url("s3"),
        **s3_options(aws_conn_id, named),
    )


def _amazon_hook(aws_conn_id: str) -> AwsBaseHook:
    try:
        from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    except ImportError as error:
        raise RayConnectionError(
            f"Argument aws_conn_id: {aws_conn_id!r} needs Airflow's amazon provider ({error}); "
            "install airflow-provider-raybatch[amazon]."
        ) from error
    return AwsBaseHook(aws_conn_id=aws_conn_id, client_type="s3")


def _names_an_identity(connection: AwsConnectionWrapper) -> bool:
    """Whether the connection does; else boto3 would find the worker's."""
    has_keys = connection.aws_access_key_id and connection.aws_secret_access_key
    return bool(has_keys or connection.role_arn or connection.profile_name)


@contextlib.contextmanager
def _one_sentence(aws_conn_id: str) -> Iterator[None]:
    from botocore import exceptions

    try:
        yield
    except exceptions.SSLError as error:
        raise RayConnectionError(
            f"Connection {aws_conn_id!r}: the certificate of AWS, or of a proxy before it, can't be trusted "
            f"({error}); set verify in its extra to the PEM file of the authority."
        ) from error
    except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
        raise RayBatchUnavailableException(
            f"Connection {aws_conn_id!r}: AWS gave no answer to who it is ({error}); a retry asks again.",
            FailureClass.STORAGE,
        ) from error
    except (exceptions.BotoCoreError, exceptions.ClientError, *_OF_BAD_EXTRAS) as error:
        raise RayConnectionError(
            f"Connection {aws_conn_id!r}: AWS gives it no credentials ({plain_reason(error)}); correct its "
            "keys, session token, role_arn or profile_name, or the clock of this machine, or leave "
            "aws_conn_id out to use the cluster's own identity."
        ) from error


def _hf_token(hf_conn_id: str) -> SecretStr:
    # A line feed at its end would break each request.
    token = (_existing(hf_conn_id, "hf_conn_id").password or "").strip()
    if not token:
        raise RayConnectionError(
            f"Connection {hf_conn_id!r}, field password: it is empty; put the Hugging Face token there."
        )
    mask_secret(token)
    return SecretStr(token)


def _existing(conn_id: str, argument: str) -> Connection:
    try:
        with server_lookup():
            return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise RayConnectionError(
            f"Argument {argument}: the connection {conn_id!r} doesn't exist; create it or correct the id."
        ) from None
