# SPDX-License-Identifier: Apache-2.0
"""Airflow's settings of the Batch API: where its files and batches lie, and what signs their records."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow.sdk.configuration import conf

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.location import checked_folder

SECTION = "raybatch"


@dataclass(frozen=True)
class BatchApiSettings:
    """Where the state of the Batch API lies.

    :param root: a folder that API servers, workers and the Ray clusters see under one path, or ``s3://``.
    :param aws_conn_id: for the bucket; ``None`` for each machine's own identity.
    :param secret: signs records.
    """

    root: str
    aws_conn_id: str | None = None
    secret: bytes = field(default=b"", repr=False)


def batch_api_settings() -> BatchApiSettings | None:
    """The settings; ``None`` where `batch_api_root` is not set, so that there is no Batch API.

    :raises SpecError: a setting can't be used.
    """
    root = (conf.get(SECTION, "batch_api_root", fallback="") or "").strip()
    if not root:
        return None
    try:
        root = checked_folder(root)
    except ValueError as error:
        raise SpecError(f"[raybatch] batch_api_root: {error}.") from None
    conn_id = (conf.get(SECTION, "batch_api_aws_conn_id", fallback="") or "").strip()
    return BatchApiSettings(root, conn_id or None, _secret())


def required_settings() -> BatchApiSettings:
    """The settings, on a machine that works for the Batch API.

    :raises SpecError: `batch_api_root` is not set, or a setting can't be used.
    """
    settings = batch_api_settings()
    if settings is None:
        raise SpecError("[raybatch] batch_api_root: it is not set on this machine; set it as on API servers.")
    return settings


def _secret() -> bytes:
    own = (conf.get(SECTION, "batch_api_secret", fallback="") or "").strip()
    shared = own or (conf.get("core", "fernet_key", fallback="") or "").strip()
    if len(shared) < 32:
        name = "batch_api_secret" if own else "batch_api_secret (and [core] fernet_key)"
        raise SpecError(
            f"[raybatch] {name}: records are signed with 32 characters or more; "
            "set the same random text on API servers and workers."
        )
    return f"raybatch batch api\n{shared}".encode()
