# SPDX-License-Identifier: Apache-2.0
"""One Airflow for all tests of this folder, with its clusters and stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .lake import Lake, locked_lake
from .ray_jobs import RayJobs
from .rest import AirflowApi
from .stack import INTERVALS, AirflowStack

if TYPE_CHECKING:
    from ..conftest import RayCluster

MODES = ("blocking", "deferrable")
HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "dags_examples"
BATCH_API = (HERE / "batch_world.py").exists()
"""False where the Batch API was deleted, as `.ci/doors.py` does on a copy."""
if BATCH_API:
    from .batch_world import SERVED, batches, dag_ids, file_id, settings  # noqa: F401 - two are fixtures
DAGS = [
    "nightly_synthetic_data",
    "report_on_questions",
    "data_curation",
    "model_evaluation",
    "use_promoted_model",
    "questions_on_one_cluster",
    *(f"{name}_{mode}" for name in ("batch", "once", "dies_after_post", "timeout") for mode in MODES),
    "bad_trigger",
    *(f"{name}_{mode}" for name in ("fails_after", "sleep") for mode in MODES),
    "chat",
    "forged",
    "warm",
    "labelled",
    "in_steps",
    "later_deadline",
    "orphan",
    "lost_trigger",
    "only_submits",
    "mapped",
    "templated",
    "double_braces",
    "each_night",
    "after_each_night",
    *(dag_ids() if BATCH_API else ()),
]
ON_KUBERNETES = ["own_cluster", "shared_cluster", "left_cluster"]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the models that the Batch API serves."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="session")
def airflow(served: Path) -> Iterator[AirflowStack]:
    """A running Airflow."""
    bundles, more = {"tests": HERE / "dags", "examples": EXAMPLES}, {}
    if BATCH_API:
        bundles["served"], more = SERVED, settings(served)
    dags = [*DAGS, *(ON_KUBERNETES if (HERE / "dags/clusters").exists() else ())]
    with AirflowStack(bundles, dags, {**INTERVALS, **more}) as stack:
        yield stack


@pytest.fixture(scope="session")
def api(airflow: AirflowStack) -> AirflowApi:
    """Airflow's REST API. The fixtures that start clusters make the connections."""
    return airflow.api


def connect(api: AirflowApi, conn_id: str, cluster: RayCluster, extra: Any = None) -> RayJobs:
    """Add a connection for `cluster` to Airflow."""
    host, _, port = cluster.url.removeprefix("http://").partition(":")
    api.connection(conn_id, "ray", host=host, port=int(port), password=cluster.address.token, extra=extra)
    return RayJobs(cluster.url, cluster.address.token)


@pytest.fixture(scope="session")
def jobs(api: AirflowApi, ray_cluster: RayCluster) -> Iterator[RayJobs]:
    """The jobs of the shared cluster, to which Airflow's connection ``ray_default`` leads."""
    with closing(connect(api, "ray_default", ray_cluster)) as jobs:
        yield jobs


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    """An S3 server with a bucket ``lake``, which answers 403 to every other key."""
    with locked_lake() as lake:
        yield lake


@pytest.fixture
def as_airflow(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
    """The connection ``lake`` for this process, which is not part of the stack."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", **lake.connection()}))
