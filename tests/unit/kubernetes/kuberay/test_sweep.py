# SPDX-License-Identifier: Apache-2.0
"""Which RayJobs on Kubernetes were left: what can't be proven is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.kubernetes.kuberay.claim import claim_cluster
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import installation_label
from airflow_provider_raybatch.kubernetes.kuberay.sweep import (
    Leftover,
    RunFate,
    delete_left,
    find_left,
    judge_leftover,
    leftover_of,
)
from tests.support.kubernetes.clock import timestamp
from tests.unit.kubernetes.kuberay.conftest import KEY, Kubernetes, plan

NOW = 1_700_000_000.0
HOUR = 3600.0
HERE = "this-airflow"
TASK = TaskKey(namespace=HERE, dag_id="d", run_id="r", task_id="t")
OVER, ACTIVE = RunFate(state="success"), RunFate(state="running")
IN_USE = RunFate(state="success", run_active=True)
NO_RUN, NO_ANSWER = RunFate(exists=False), RunFate(known=False)

RUNNING = Leftover(
    name="a",
    uid="u",
    created=NOW - HOUR,
    installation=installation_label(HERE),
    task=TASK,
    status="Running",
    ends=NOW + HOUR,
)
ENDED = replace(RUNNING, status="Failed", ends=None, expires=NOW - HOUR)

DECISIONS = [
    ("its_task_has_ended", RUNNING, OVER, True, "its task is success"),
    ("its_task_failed", RUNNING, RunFate(state="failed"), True, "its task is failed"),
    ("skipped", RUNNING, RunFate(state="skipped"), True, "its task is skipped"),
    ("its_task_runs", RUNNING, ACTIVE, False, "its task is running"),
    ("deferred", RUNNING, RunFate(state="deferred"), False, "its task is deferred"),
    ("retries", RUNNING, RunFate(state="up_for_retry"), False, "its task is up_for_retry"),
    ("cleared", RUNNING, RunFate(state=None), False, "its task is to be scheduled"),
    ("unheard_state", RUNNING, RunFate(state="dreaming"), False, "its task is dreaming"),
    ("airflow_is_silent", RUNNING, NO_ANSWER, False, "Airflow gives no answer"),
    ("no_run", RUNNING, NO_RUN, False, "no such DAG run, and KubeRay ends it in 1 h 0 min"),
    ("no_run_and_late", replace(RUNNING, ends=NOW - HOUR), NO_RUN, True, "no such DAG run"),
    ("no_run_no_deadline", replace(RUNNING, ends=None), NO_RUN, False, "delete it by hand"),
    ("killed_and_drains", replace(RUNNING, ends=NOW + 120), OVER, False, "KubeRay ends it in 2 min"),
    ("past_its_deadline", replace(RUNNING, ends=NOW - HOUR), OVER, True, "its task is success"),
    ("unfollowed", replace(RUNNING, unfollowed=True), OVER, False, "does not wait for its job"),
    ("unfollowed_and_marked", replace(RUNNING, unfollowed=True), RunFate(state="failed"), True, "is failed"),
    ("unfollowed_and_ended", replace(ENDED, unfollowed=True), OVER, True, "it has ended"),
    ("leased_and_used", replace(RUNNING, leased=True), IN_USE, False, "its DAG run is not over"),
    ("leased_and_run_over", replace(RUNNING, leased=True), OVER, True, "its task is success"),
    ("leased_and_ended", replace(ENDED, leased=True), IN_USE, True, "it has ended"),
    ("not_leased", RUNNING, IN_USE, True, "its task is success"),
    ("waits_in_a_queue", replace(RUNNING, status="Suspended", ends=None), OVER, True, "success"),
    ("ended_and_over", ENDED, OVER, True, "it has ended, and its task is success"),
    ("ended_and_runs", ENDED, ACTIVE, False, "its task is running"),
    ("ended_and_no_run", ENDED, NO_RUN, True, "it has ended, and Airflow has no such DAG run"),
    ("ended_lately", replace(ENDED, expires=NOW), OVER, False, "its logs are kept for a while"),
    ("young", replace(RUNNING, created=NOW - 60), OVER, False, "it is younger than 10 min"),
    ("of_another_airflow", replace(RUNNING, installation=installation_label("b")), OVER, False, "another"),
    ("without_a_label", replace(RUNNING, installation=""), OVER, False, "it is of another Airflow"),
    ("no_annotations", replace(RUNNING, task=None), None, False, "its annotations do not name a task"),
    (
        "other_namespace",
        replace(RUNNING, task=TASK.model_copy(update={"namespace": "b"})),
        OVER,
        False,
        "not name",
    ),
    ("being_deleted", replace(RUNNING, deleting=True), OVER, False, "it is being deleted"),
]


@pytest.mark.parametrize(
    ("name", "one", "fate", "delete", "reason"), DECISIONS, ids=[one[0] for one in DECISIONS]
)
def test_decision(name: str, one: Leftover, fate: RunFate | None, delete: bool, reason: str) -> None:
    found, why = judge_leftover(one, fate, HERE, NOW)
    assert found is delete
    assert reason in why


def manifest(**status: Any) -> dict[str, Any]:
    """The RayJob of the run as its manifest is made."""
    made = plan().manifest_of(0)
    made["metadata"] |= {"uid": "u", "creationTimestamp": timestamp(NOW)}
    return {**made, "status": status}


@pytest.mark.parametrize(
    ("status", "ends"),
    [
        ("Initializing", 1860),
        ("Waiting", 1860),
        ("Running", 3600),
        ("Complete", None),
        ("Suspended", None),
    ],
)
def test_deadline_that_counts(status: str, ends: float | None) -> None:
    found = leftover_of(manifest(jobDeploymentStatus=status, startTime=timestamp(NOW)))
    assert found.ends == (None if ends is None else NOW + ends)
    assert found.task == KEY.task


def test_annotations_that_do_not_fit_the_label() -> None:
    changed = manifest()
    changed["metadata"]["annotations"]["raybatch/run-id"] = "another"
    assert leftover_of(changed).task is None
    changed["metadata"]["annotations"] = {}
    assert leftover_of(changed).task is None


def test_only_the_very_rayjob_is_deleted(kubernetes: Kubernetes) -> None:
    async def scene() -> None:
        claimed = await claim_cluster(kubernetes.api, KEY, plan())
        (one,) = await find_left(kubernetes.api)
        assert one.name == claimed.claim.name
        assert await delete_left(kubernetes.api, [replace(one, uid="another")]) == []
        assert await delete_left(kubernetes.api, [one]) == [one]

    asyncio.run(scene())
