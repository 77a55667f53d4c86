# SPDX-License-Identifier: Apache-2.0
"""``raybatch clusters``: what tasks have made on Kubernetes, and what of it was left."""

from __future__ import annotations

import datetime
import sys
from argparse import Namespace

from airflow_provider_raybatch.cli.terminal import Row, print_rows, quietly
from airflow_provider_raybatch.cluster.kuberay.sweep import ACTIVE_RUNS, Leftover, RunFate, Sweep
from airflow_provider_raybatch.contract.base import in_words
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.contract.text import clean, count_of

_FIRST = ("name", "state", "verdict", "reason", "task", "age", "gpus", "ends", "run")
"""What a narrow table shows before other columns."""


def show_clusters(options: Namespace) -> None:
    """List the clusters that tasks have made, or delete those that were left."""
    from airflow_provider_raybatch.hooks.installation import known_installation_id
    from airflow_provider_raybatch.hooks.kubernetes import DEFAULT_KUBERNETES_CONN_ID, KubernetesServerHook
    from airflow_provider_raybatch.hooks.left_clusters import sweep

    hook = KubernetesServerHook(options.kubernetes_conn_id or DEFAULT_KUBERNETES_CONN_ID)
    server = quietly(hook.server)
    installation = quietly(known_installation_id) or ""
    swept = quietly(
        lambda: sweep(server, options.namespace, installation, _fate_in_database, delete=options.delete)
    )
    print_rows((_row(one, verdict, swept.now) for one, verdict in swept.judged), options.format, _FIRST)
    if options.format == "table":
        for name in swept.deleted:
            print(clean(f"Deleted {name}."))
        left = sum(verdict.delete for _, verdict in swept.judged)
        total = count_of(len(swept.judged), "RayJob")
        hint = "; --delete deletes them" if left and not options.delete else ""
        print(clean(f"Left: {left:,} of {total} in namespace {swept.namespace}{hint}."))
    if not installation:
        print(
            "This Airflow has no id yet (Variable raybatch_installation_id), so all counts as others'.",
            file=sys.stderr,
        )


def _fate_in_database(task: TaskKey) -> RunFate:
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


def _row(one: Leftover, verdict: Sweep, now: float) -> Row:
    task = one.task
    mapped = f"[{task.map_index}]" if task is not None and task.map_index >= 0 else ""
    return {
        "name": one.name,
        "state": "Deleting" if one.deleted is not None else one.status or None,
        "task": None if task is None else f"{task.dag_id}.{task.task_id}{mapped}",
        "run": None if task is None else task.run_id,
        "age": in_words(max(0.0, now - one.created)),
        "created": _time(one.created),
        "gpus": one.gpus or None,
        "ends": None if one.ends is None else _time(one.ends),
        "verdict": "left" if verdict.delete else "kept",
        "reason": verdict.reason,
    }


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds")
