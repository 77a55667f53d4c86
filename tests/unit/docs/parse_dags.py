# SPDX-License-Identifier: Apache-2.0
"""Build the DAGs of a folder and check their operators; a test runs this in a process of its own.

Prints JSON: import errors, the DAG ids of each file, and the problems of single tasks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.testing import check_dag


def main(folder: str) -> None:
    bag = DagBag(folder)
    problems: list[str] = []
    dag_ids: dict[str, list[str]] = {}
    for name, dag in bag.dags.items():
        dag_ids.setdefault(Path(dag.fileloc).name, []).append(name)
        DagSerialization.to_dict(dag)
        try:
            check_dag(dag)
        except SpecError as error:
            problems += [f"{name}.{mistake}" for mistake in str(error).split("\n")[1:]]
    print(json.dumps({"errors": bag.import_errors, "dags": dag_ids, "problems": problems}))


if __name__ == "__main__":
    main(sys.argv[1])
