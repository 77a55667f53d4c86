# SPDX-License-Identifier: Apache-2.0
"""What travelled to the driver in a private package: the job's key, and credentials."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.contract.layout import KEY_FILE, SECRETS_FILE
from airflow_provider_raybatch.contract.secrets import SEAL_KEY_VARIABLE, Secrets, unseal

_NAMESPACE = b"runtime_env"


@dataclass(frozen=True)
class PrivatePackage:
    """What travelled with the job, for its driver alone.

    :param key: of the job: it signs the driver's events and the followers' orders.
    :param sealed: credentials, if any travel.
    """

    key: str | None = field(default=None, repr=False)
    sealed: bytes | None = field(default=None, repr=False)

    def secrets(self) -> Secrets:
        """The credentials.

        :raises PreflightError: they can't be unsealed here.
        """
        if self.sealed is None:
            return Secrets()
        return unseal(self.sealed, os.environ.get(SEAL_KEY_VARIABLE))


def fetch(package: str | None) -> PrivatePackage:
    """Read `package` from Ray's key-value store, not from a disk, and delete it.

    :raises PreflightError: the package is gone.
    """
    if package is None:
        return PrivatePackage()
    content = stored(package)
    if content is None:
        raise PreflightError(
            "credentials: their package is no longer on the cluster; the retry sends it again.",
            FailureClass.CLUSTER_LOST,
        )
    forget(package)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name.split("/")[-1]: archive.read(name) for name in archive.namelist()}
    key = members.get(KEY_FILE)
    return PrivatePackage(None if key is None else key.decode(), members.get(SECRETS_FILE))


def stored(package: str) -> bytes | None:
    """A package's content, ``None`` when the cluster's store doesn't hold it."""
    from ray.experimental.internal_kv import _internal_kv_get

    key = f"gcs://{package}".encode()
    found: bytes | None = _internal_kv_get(key) or _internal_kv_get(key, namespace=_NAMESPACE)
    return found


def forget(package: str) -> None:
    """Delete a package from the cluster's store."""
    from ray.experimental.internal_kv import _internal_kv_del

    key = f"gcs://{package}".encode()
    _internal_kv_del(key)
    _internal_kv_del(key, namespace=_NAMESPACE)


def environment(secrets: Secrets) -> dict[str, SecretStr]:
    """Variables for the engine's processes. Ray Data exports arguments as text, in which they are masked."""
    return {"HF_TOKEN": secrets.hf_token} if secrets.hf_token else {}


def set_environment(variables: Mapping[str, SecretStr]) -> None:
    """Set them in this process."""
    os.environ.update({name: value.get_secret_value() for name, value in variables.items()})
