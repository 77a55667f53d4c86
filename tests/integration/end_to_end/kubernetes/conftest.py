# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes for Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubernetes.place import Place, kubernetes_place

from ..rest import AirflowApi


@pytest.fixture
def place(api: AirflowApi, tmp_path: Path, cluster_python: str) -> Iterator[Place]:
    """A Kubernetes, to which Airflow's connection ``kubernetes_default`` leads."""
    with kubernetes_place(tmp_path, python=Path(cluster_python)) as made:
        extra = {"kube_config_path": str(made.kubeconfig), "namespace": made.namespace}
        api.connection("kubernetes_default", "kubernetes", extra=extra)
        yield made
