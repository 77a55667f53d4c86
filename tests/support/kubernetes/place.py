# SPDX-License-Identifier: Apache-2.0
"""Where scenes on Kubernetes run: on the stand-in, or on a real API server with the real KubeRay.

With ``RAYBATCH_TEST_KUBECONFIG`` scenes run on the cluster of that kubeconfig; CONTRIBUTING.md says what
it needs. A scene reaches its clusters through the API server's proxy, which both have, and looks only at
what the provider leaves behind; whatever needs a fault or another clock asks for :attr:`Place.stand_in`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_server import Authority
from tests.support.kubernetes.credentials import tls_of, write_kubeconfig
from tests.support.kubernetes.ray_world import ray_world
from tests.support.kubernetes.role import KUEUE, PROXY, role_rules
from tests.support.kubernetes.world import World, world

KUBECONFIG = "RAYBATCH_TEST_KUBECONFIG"
NAMESPACE = "RAYBATCH_TEST_NAMESPACE"
IMAGE = "RAYBATCH_TEST_IMAGE"
_TOKEN = "a-token-of-airflow"


@dataclass(frozen=True)
class Place:
    """An API server that scenes use as a user's Airflow does.

    :param kubeconfig: its account has the Role that the provider documents, and nothing else.
    :param image: of the clusters; on the stand-in it is a name only.
    :param world: the stand-in; ``None`` on a real cluster.
    """

    kubeconfig: Path
    namespace: str
    image: str
    world: World | None

    @property
    def stand_in(self) -> World:
        """The stand-in, for faults, clocks and disasters; a scene that needs it is skipped elsewhere."""
        if self.world is None:
            pytest.skip("only the stand-in for a Kubernetes has faults and clocks that a test may move")
        return self.world


@contextmanager
def kubernetes_place(folder: Path, *, python: Path | None = None, **given: Any) -> Iterator[Place]:
    """The API server for a scene, for the length of a block.

    :param folder: for a kubeconfig and certificates.
    :param python: the interpreter whose Ray runs as pods; without, heads are fake Jobs APIs.
    :param given: to the stand-in's :class:`World`; without effect on a real cluster.
    """
    if KUBECONFIG in os.environ:
        namespace = os.environ.get(NAMESPACE, "default")
        yield Place(Path(os.environ[KUBECONFIG]), namespace, os.environ[IMAGE], None)
        return
    authority = Authority(folder)
    made = ray_world(authority, python, **given) if python else world(tls=tls_of(authority), **given)
    with made as kubernetes:
        rules = role_rules(PROXY, KUEUE)
        kubernetes.server.access.grant("airflow", rules, namespace="default", token=_TOKEN)
        path = folder / "kubeconfig"
        write_kubeconfig(path, kubernetes.web.url, token=_TOKEN, authority=authority.pem)
        yield Place(path, "default", "rayproject/ray:stand-in", kubernetes)
