# SPDX-License-Identifier: Apache-2.0
"""Build the DAGs of a folder and check their operators; a test runs this in a process of its own.

Prints JSON: import errors, the DAG ids of each file, and the problems of single tasks.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_raybatch.operators.base import RayOperator

EARLIER_RESULT = {"uri": "s3://lake/earlier", "format": "parquet", "submission_id": "raybatch-1"}
"""Stands for what an earlier task returns."""


def main(folder: str) -> None:
    bag = DagBag(folder)
    problems = []
    dag_ids: dict[str, list[str]] = {}
    for name, dag in bag.dags.items():
        dag_ids.setdefault(Path(dag.fileloc).name, []).append(name)
        DagSerialization.to_dict(dag)
        for operator in dag.tasks:
            if isinstance(operator, RayOperator) and not hasattr(operator, "python_callable"):
                problems += problems_of(operator, dag)
    print(json.dumps({"errors": bag.import_errors, "dags": dag_ids, "problems": problems}))


def problems_of(operator: Any, dag: Any) -> list[str]:
    """Return what the operator refuses before it needs a cluster."""
    for name in operator.template_fields:
        if hasattr(getattr(operator, name), "resolve"):
            setattr(operator, name, EARLIER_RESULT)
    run = SimpleNamespace(run_after=datetime(2026, 1, 31, 2, tzinfo=UTC), partition_key="2026-01-31")
    operator.aws_conn_id = operator.hf_conn_id = None  # no connections here
    try:
        operator.render_template_fields({"dag_run": run, "params": dag.params.dump()})
        operator._settle()
        operator.plan(
            SimpleNamespace(
                deadline=SimpleNamespace(earlier=None),
                connection=SimpleNamespace(embedded=False, secret_seal_key=None),
                record=None,
            )
        )
    except Exception as error:
        return [f"{dag.dag_id}.{operator.task_id}: {type(error).__name__}: {error}"]
    return []


if __name__ == "__main__":
    main(sys.argv[1])
