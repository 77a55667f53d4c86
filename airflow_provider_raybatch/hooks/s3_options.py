# SPDX-License-Identifier: Apache-2.0
"""How a job, which has no boto3, reaches S3 as an ``aws`` connection says."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from airflow_provider_raybatch.coercion import boolean
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import RayConnectionError

if TYPE_CHECKING:
    from airflow.providers.amazon.aws.utils.connection_wrapper import AwsConnectionWrapper

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
