# SPDX-License-Identifier: Apache-2.0
"""What Airflow's database says of a task, for verbs: they run outside of tasks, as Airflow's own commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.kuberay.sweep import ACTIVE_RUNS, RunFate

if TYPE_CHECKING:
    from airflow_provider_raybatch.contract.submission import TaskKey


def fate_in_database(task: TaskKey) -> RunFate:
    """The state of a task; unknown where the database gives no answer."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    try:
        with create_session() as session:
            runs = DagRun.find(dag_id=task.dag_id, run_id=task.run_id, session=session)
            if not runs:
                return RunFate(exists=False)
            found = runs[0].get_task_instance(task.task_id, map_index=task.map_index, session=session)
    except Exception:  # a database of any kind; what can't be asked is not known
        return RunFate(known=False)
    if found is None:
        return RunFate(exists=False)
    state = None if found.state is None else str(found.state)
    return RunFate(state=state, run_active=str(runs[0].state) in ACTIVE_RUNS)
