# SPDX-License-Identifier: Apache-2.0
"""Connections to S3 through obstore, with credentials given or found."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.storage import errors

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

_STORES: dict[Any, S3Store] = {}
_MOST = 32
"""Stores that are kept: the API server renews the credentials of a role all day long."""

_RENEWED = timedelta(minutes=10)
"""How long renewed credentials are used; obstore asks for others five minutes earlier."""


def s3_store(
    bucket: str, credentials: AwsCredentials | None, limits: errors.RetryLimits | None = None
) -> S3Store:
    """One store a process and identity: a store holds a connection pool.

    :param limits: how long obstore itself repeats a request; by default :data:`errors.RETRY_LIMITS`.
    """
    # The environment may name the identity and the endpoint.
    environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    limits = limits or errors.RETRY_LIMITS
    key = (os.getpid(), bucket, credentials, environment, limits)
    store = _STORES.get(key)
    if store is None:
        store = _STORES[key] = new_store(bucket, credentials, limits)
        while len(_STORES) > _MOST:
            _STORES.pop(next(iter(list(_STORES))), None)  # the oldest; threads may do this at once
    return store


def new_store(
    bucket: str,
    credentials: AwsCredentials | None,
    limits: errors.RetryLimits,
    renewed: Callable[[], AwsCredentials | None] | None = None,
) -> S3Store:
    """A store of its own, for a process that sees new credentials again and again.

    :param renewed: the credentials as they are now, for a store that may outlive those of a role; called in
        any thread, every few minutes.
    """
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise PreflightError(
            f"s3://{bucket}: 'obstore' can't be imported on this node ({error}){_shipped_for()}; install it "
            "in the cluster's image, or by runtime_env={'pip': ['obstore']}."
        ) from error
    try:
        options = _s3_options(bucket, credentials, limits)
        if renewed is not None and credentials and credentials.aws_session_token:
            for name in ("access_key_id", "secret_access_key", "session_token"):
                options.pop(name)
            options["credential_provider"] = partial(_credential, renewed)
        return S3Store(bucket, **options)
    except ValueError as error:
        if "root_certificate" not in str(error):
            raise
        version = importlib.metadata.version("obstore")
        raise PreflightError(
            f"s3://{bucket}: obstore {version} on this node can't use the certificates of verify or "
            f"AWS_CA_BUNDLE ({error}); give PEM to obstore 0.12 or newer, or set SSL_CERT_FILE instead."
        ) from error


def _shipped_for() -> str:
    """The platforms of wheel and node, which may not fit."""
    try:
        wheel = importlib.metadata.distribution("obstore").read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        return ""
    tags = [line.removeprefix("Tag: ") for line in wheel.splitlines() if line.startswith("Tag: ")]
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return f": the wheel found is {' or '.join(tags)}, and this is {here}" if tags else ""


def _s3_options(
    bucket: str, credentials: AwsCredentials | None, limits: errors.RetryLimits
) -> dict[str, Any]:
    given = credentials or AwsCredentials()
    endpoint = (
        given.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    )
    region = (
        given.region_name
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or "us-east-1"
    )
    options: dict[str, Any] = {
        "region": region,
        "client_options": {
            "connect_timeout": timedelta(seconds=limits.connect),
            "timeout": timedelta(seconds=limits.answer),
        },
        "retry_config": _retry_config(limits),
    }
    if endpoint:
        # Self-hosted stores seldom have the wildcard DNS that virtual-hosted requests need.
        virtual = given.addressing_style == "virtual"
        scheme, separator, host = endpoint.partition("://")
        url = f"{scheme}{separator}{bucket}.{host}" if virtual else endpoint  # obstore adds no bucket to it
        options.update(endpoint=url, virtual_hosted_style_request=virtual)
        options["client_options"]["allow_http"] = endpoint.startswith("http://")
    elif given.addressing_style:
        options["virtual_hosted_style_request"] = given.addressing_style == "virtual"
    if not given.verify:
        options["client_options"]["allow_invalid_certificates"] = True
    elif authorities := given.ca_certificates or _bundle():
        options["client_options"]["root_certificate"] = authorities
    return {**options, **_identity(given)}


def _retry_config(limits: errors.RetryLimits) -> dict[str, Any]:
    pauses = timedelta(seconds=limits.first_pause), timedelta(seconds=limits.longest_pause)
    return {
        "max_retries": limits.repeats,
        "retry_timeout": timedelta(seconds=limits.repeat),
        "backoff": {"init_backoff": pauses[0], "max_backoff": pauses[1], "base": 2},
    }


def _credential(renewed: Callable[[], AwsCredentials | None]) -> S3Credential:
    """What obstore asks for again when it is about to expire."""
    key = _key(renewed() or AwsCredentials())
    return {
        "access_key_id": key["access_key_id"],
        "secret_access_key": key["secret_access_key"],
        "token": key.get("session_token"),
        "expires_at": datetime.now(timezone.utc) + _RENEWED,
    }


def _key(given: AwsCredentials) -> dict[str, str]:
    secrets = {
        "access_key_id": given.aws_access_key_id,
        "secret_access_key": given.aws_secret_access_key,
        "session_token": given.aws_session_token,
    }
    return {name: secret.get_secret_value() for name, secret in secrets.items() if secret}


def _identity(given: AwsCredentials) -> dict[str, Any]:
    if given.aws_access_key_id and given.aws_secret_access_key:
        return _key(given)
    if not os.environ.get("AWS_ACCESS_KEY_ID") and (provider := _profile_credentials()):
        return {"credential_provider": provider}
    return {}


def _bundle() -> str | None:
    """The authorities that boto3 trusts, by the same variable."""
    path = os.environ.get("AWS_CA_BUNDLE")
    try:
        return Path(path).read_text(encoding="utf-8") if path else None
    except (OSError, ValueError) as error:
        raise PreflightError(
            f"AWS_CA_BUNDLE: {path!r} can't be read ({error}); name a PEM file of this machine."
        ) from error


def _profile_credentials() -> Any:
    """boto3's chain (profiles, SSO), if boto3 is installed: obstore itself reads no profiles."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    session = boto3.Session()
    return Boto3CredentialProvider(session) if session.get_credentials() else None
