# SPDX-License-Identifier: Apache-2.0
"""Files with which clients log in to the stand-in for a Kubernetes: a kubeconfig, and a pod's folder."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

from tests.support.http_server import Authority


def tls_for(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """What a server on 127.0.0.1 needs to speak TLS, and the file of the authority that clients trust."""
    authority = Authority(folder)
    return tls_of(authority), authority.pem


def tls_of(authority: Authority) -> ssl.SSLContext:
    """What a server on 127.0.0.1 needs to speak TLS, and to take certificates of clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server("127.0.0.1", "localhost"))
    context.load_verify_locations(authority.pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def write_kubeconfig(
    path: Path, url: str, *, token: str = "", exec_command: list[str] | None = None,
    namespace: str = "default", authority: Path | None = None,
) -> Path:  # fmt: skip
    """Write a kubeconfig with one context; JSON is YAML.

    :param exec_command: prints an ExecCredential, as the plugins of the clouds do.
    """
    user: dict[str, Any] = {"token": token} if token else {}
    if exec_command is not None:
        command, *arguments = exec_command
        user["exec"] = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": command,
            "args": arguments,
            "interactiveMode": "Never",
        }
    cluster = {"server": url, **({"certificate-authority": str(authority)} if authority else {})}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stand-in", "cluster": cluster}],
        "users": [{"name": "airflow", "user": user}],
        "contexts": [
            {
                "name": "stand-in",
                "context": {"cluster": "stand-in", "user": "airflow", "namespace": namespace},
            }
        ],
        "current-context": "stand-in",
    }
    path.write_text(json.dumps(config, indent=1))
    return path


def write_service_account(folder: Path, token: str, authority: Path, namespace: str = "default") -> Path:
    """Write what Kubernetes mounts into a pod at ``/var/run/secrets/kubernetes.io/serviceaccount``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes(authority.read_bytes())
    (folder / "namespace").write_text(namespace)
    return folder
