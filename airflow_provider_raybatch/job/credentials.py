# SPDX-License-Identifier: Apache-2.0
"""Fetch the credentials that travelled with the job, and delete them from the cluster's store."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.contract.secrets import SEAL_KEY_VARIABLE, Secrets, unseal

_MEMBER = "secrets"
_NAMESPACE = b"runtime_env"


def fetch(package: str | None) -> Secrets:
    """The secrets in `package`, or none.

    Read straight from Ray's key-value store: as a runtime environment they would be unpacked onto a disk.

    :raises PreflightError: the package is gone, or can't be unsealed.
    """
    if package is None:
        return Secrets()
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get

    key = f"gcs://{package}".encode()
    content = _internal_kv_get(key) or _internal_kv_get(key, namespace=_NAMESPACE)
    if content is None:
        raise PreflightError(
            "credentials: their package is no longer on the cluster; the retry sends it again.",
            FailureClass.CLUSTER_LOST,
        )
    _internal_kv_del(key)
    _internal_kv_del(key, namespace=_NAMESPACE)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        sealed = archive.read(next(name for name in names if name.split("/")[-1] == _MEMBER))
    return unseal(sealed, os.environ.get(SEAL_KEY_VARIABLE))


def environment(secrets: Secrets) -> dict[str, SecretStr]:
    """Variables for the engine's processes, set inside them and nowhere else.

    Ray Data exports the arguments of its operators as text, which of such a value says nothing.
    """
    return {"HF_TOKEN": secrets.hf_token} if secrets.hf_token else {}


def set_environment(variables: Mapping[str, SecretStr]) -> None:
    """Set them in this process."""
    os.environ.update({name: value.get_secret_value() for name, value in variables.items()})
