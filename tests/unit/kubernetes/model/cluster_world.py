# SPDX-License-Identifier: Apache-2.0
"""Attempts of one task, each with the cluster of its run: every call is a step, and may fail."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError, ClusterUnreachableError
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest, JobStatus
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.kubernetes.api.errors import ClusterOverError, KubernetesUnreachableError
from airflow_provider_raybatch.kubernetes.kuberay import lifecycle
from airflow_provider_raybatch.kubernetes.kuberay.claim import ClaimResult, ClusterPlan
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import (
    FINGERPRINT,
    NUMBER,
    RUN,
    RUN_TOKEN,
    TASK,
    ClusterClaim,
    RayJobState,
    rayjob_name,
    run_label,
)
from airflow_provider_raybatch.kubernetes.kuberay.submission import submit_on_own_cluster
from tests.unit.model.exploring import STRIDE, Choose
from tests.unit.model.process import Wrong

from .cluster_process import Client, Process
from .kuberay import GRACE, TTL, Kubernetes

PRE_RUNNING, WINDOW, IDLE, POLL, BOUND = 60, 60, 30, 10.0, 5
MOST_ATTEMPTS = 9
OWNER = TaskKey(dag_id="d", run_id="r", task_id="t")
CLOCK = SimpleNamespace()
"""Stands for the module ``time``."""


class World:
    """One task and its clusters.

    :param faults: kinds of faults that may happen.
    :param times: how many may.
    :param checked: states of Kubernetes in which nothing stays if all processes die.
    :ivar token: of the task's present run.
    :ivar results: tokens of runs whose result is on record.
    :ivar over: whether a user has ended the task.
    """

    counts = ()

    def __init__(self, faults: tuple[str, ...], times: int, checked: set[Hashable], choose: Choose) -> None:
        self.faults, self.faults_left = faults, times
        self.checked = checked
        self.kubernetes = Kubernetes()
        self.kubernetes.followed = self._is_followed
        self.processes: list[Process | None] = []
        self.token = "try1-run"
        self.attempts = 0
        self.secrets = 0
        self.results: list[str] = []
        self.over = False
        self.bounded = float("inf")
        CLOCK.monotonic = lambda: self.kubernetes.now
        self.late: list[Callable[[], Any]] = []

    def key(self, token: str) -> SubmissionKey:
        return SubmissionKey(OWNER, token)

    def plan(self, process: Process) -> ClusterPlan:
        key = self.key(process.token)

        def manifest_of(number: int) -> dict[str, Any]:
            self._check_current(process)
            self.secrets += 1
            name = rayjob_name(key, number)
            annotations = {NUMBER: str(number), FINGERPRINT: "f", RUN_TOKEN: key.run_token}
            labels = {RUN: run_label(key), TASK: key.task.digest}
            return {
                "kind": "RayJob",
                "metadata": {"name": name, "labels": labels, "annotations": annotations},
                "spec": {
                    "preRunningDeadlineSeconds": PRE_RUNNING,
                    "activeDeadlineSeconds": WINDOW,
                    "rayClusterSpec": {"authOptions": {"secretName": f"{name}-{self.secrets}"}},
                },
            }

        def secret_of(claim: ClusterClaim) -> dict[str, Any]:
            metadata = {"name": claim.secret, "ownerReferences": [{"uid": claim.uid}]}
            return {"kind": "Secret", "metadata": metadata}

        async def finished(rayjob: RayJobState) -> bool:
            try:
                info = await Client(process, rayjob.uid).info(key.submission_id(rayjob.number))
            except ClusterUnreachableError:
                return False
            return info is not None and info.status is JobStatus.SUCCEEDED

        return ClusterPlan("f", manifest_of, secret_of, WINDOW, PRE_RUNNING, IDLE, finished=finished)

    def _check_current(self, process: Process) -> None:
        if process.token != self.token or self.over:
            raise ClusterError("the task was cleared, or ended by a user")

    # What processes do.

    async def attempt(self, process: Process) -> None:
        """Do what an attempt of a task does."""
        key, api = self.key(process.token), process

        @asynccontextmanager
        async def connect(claimed: ClaimResult) -> AsyncIterator[Any]:
            await self._ready(process, claimed)
            yield Client(process, claimed.claim.uid)

        async def build(client: Any, submission_id: str) -> JobRequest:
            self._check_current(process)
            return JobRequest("true", submission_id)

        made = await submit_on_own_cluster(api, key, self.plan(process), connect, build)  # type: ignore[arg-type]
        process.follows = made.claimed.claim.uid
        await lifecycle.release_older(api, key, made.claimed.state)  # type: ignore[arg-type]
        if await self._follow(process, made.claimed.claim) is not JobStatus.SUCCEEDED:
            raise ClusterError("the job failed")
        await process.ask("record", partial(self._record, process.token))
        process.follows = ""
        await lifecycle.release(api, made.claimed.claim)  # type: ignore[arg-type]

    def _record(self, token: str) -> None:
        if token not in self.results:  # Airflow takes nothing from an attempt that it has given up
            self.results.append(token)

    async def _ready(self, process: Process, claimed: ClaimResult) -> None:
        for _ in range(12):
            rayjob = await lifecycle.state(process, claimed.claim)  # type: ignore[arg-type]
            if rayjob is None or rayjob.deleting or (rayjob.terminal and not claimed.state.terminal):
                raise ClusterOverError("The cluster has ended before it took jobs.")
            if rayjob.terminal or rayjob.deployment_status in {"Waiting", "Running"}:
                return
            await asyncio.sleep(POLL)
        raise ClusterError("cluster_wait has passed")

    async def _follow(self, process: Process, claim: ClusterClaim) -> JobStatus:
        submission_id = self.key(process.token).submission_id(claim.number)
        client, unreachable = Client(process, claim.uid), 0
        while True:
            try:
                info = await client.info(submission_id)
                if info is None or info.status.is_terminal:
                    return JobStatus.FAILED if info is None else info.status
                unreachable = 0
            except ClusterUnreachableError:
                unreachable += 1
                if unreachable > 3:
                    raise
            try:
                rayjob = await lifecycle.renew(process, claim, WINDOW, submission_id)  # type: ignore[arg-type]
            except KubernetesUnreachableError:
                rayjob = None
            else:
                if rayjob is None or not rayjob.living or (rayjob.suspended and rayjob.job_id):
                    raise ClusterError("the cluster was deleted")
            await asyncio.sleep(POLL)

    async def kill(self, process: Process) -> None:
        """Do what the kill of a task by a user does: it may die at any step."""
        key, api = self.key(process.token), process
        found = await lifecycle.clusters_of_run(api, key)  # type: ignore[arg-type]
        for one in found:
            claim = lifecycle.claim_of(api, one)  # type: ignore[arg-type]
            await lifecycle.bound(api, claim, BOUND, one)  # type: ignore[arg-type]
        self.bounded = self.kubernetes.now + BOUND
        for one in await lifecycle.clusters_of_run(api, key):  # type: ignore[arg-type]
            if not one.deleting:
                await lifecycle.delete(api, lifecycle.claim_of(api, one))  # type: ignore[arg-type]

    # Steps.

    @property
    def alive(self) -> list[Process]:
        return [one for one in self.processes if one is not None]

    def options(self) -> tuple[list[Any], list[Any]]:
        waiting = [one for one in self.alive if one.call is not None and not one.frozen]
        usual: list[Any] = [(self.answer, one.number, "") for one in waiting]
        usual += [(self.act, name, step.__name__) for (step,), name in self.kubernetes.steps()]
        if not self.faults_left and STRIDE > 1:
            del usual[1:]  # by default, all orders are tried before the last fault alone
        usual += [(self.thaw, one.number) for one in self.alive if one.frozen]
        usual += [(self.arrive, number) for number in range(len(self.late))]
        usual += [(self.admit, one.name) for one in self.kubernetes.objects.values() if one.suspended]
        if self.kubernetes.away:
            usual.append((self.return_operator,))
        is_done = self.token in self.results or self.over
        if (
            not is_done
            and self._may_begin
            and all(one.frozen or one.token != self.token for one in self.alive)
        ):
            usual.append((self.begin,))
        if is_done and not self.alive:
            return [], []
        if not waiting and not self.kubernetes.steps() and self._instants():
            usual.append((self.pass_time,))
        return usual, self._faults(waiting) if self.faults_left else []

    @property
    def _may_begin(self) -> bool:
        """Return whether retries do not end before operator and quota are back."""
        queued = any(one.suspended for one in self.kubernetes.objects.values())
        return self.attempts < 3 or not (self.kubernetes.away or queued)

    def _faults(self, waiting: list[Process]) -> list[Any]:
        found: list[Any] = []
        clusters = [one.name for one in self.kubernetes.objects.values() if one.head is not None]
        for one in waiting:
            found += [
                (self.answer, one.number, kind) for kind in ("before", "after") if "lost" in self.faults
            ]
            if "late" in self.faults and one.call is not None and one.call.changes:
                found.append((self.answer, one.number, "late"))
            found += [(self.end, one.number)] if "kill" in self.faults else []
            found += [(self.freeze, one.number)] if "freeze" in self.faults else []
        for name in clusters:
            found += [
                (self.break_cluster, name, kind)
                for kind in ("head", "raycluster", "job")
                if kind in self.faults
            ]
        for name, one_object in self.kubernetes.objects.items():
            found += [(self.delete, name)] if "rayjob" in self.faults else []
            if "suspend" in self.faults and not one_object.suspended:
                found.append((self.suspend, name))
        if "operator" in self.faults and not self.kubernetes.away:
            found.append((self.lose_operator,))
        if self.token == "try1-run" and not self.over and self.token not in self.results:
            found += [(self.clear, kind) for kind in ("kill", "freeze") if f"clear, {kind}" in self.faults]
            found += [(self.mark_failed,)] if "mark failed" in self.faults else []
        return found

    def do(self, step: Any) -> None:
        before = self.faults_left
        what, *arguments = step
        what(*arguments)
        assert self.faults_left <= before
        self.kubernetes.check()

    def answer(self, number: int, lost: str) -> None:
        process = self.processes[number]
        assert process is not None
        assert process.call is not None
        call, process.call = process.call, None
        self.faults_left -= bool(lost)
        answer: Any = None
        error: BaseException | None = None
        if lost == "late":
            self.late.append(call.act)
        elif lost != "before":
            try:
                answer = call.act()
            except ClusterError as refused:
                error = refused
        if lost:
            kind = ClusterUnreachableError if call.name.startswith("ray") else KubernetesUnreachableError
            error = kind("no answer")
        process.seen = hash((process.seen, call.name, repr(answer), repr(error)))
        if error is None:
            call.future.set_result(answer)
        else:
            call.future.set_exception(error)
        self._run(process)

    def _run(self, process: Process) -> None:
        process.loop.now = self.kubernetes.now
        process.loop.run()
        if not process.task.done():
            return
        self.processes[process.number] = None
        error = process.task.exception()
        if error is not None and not isinstance(error, ClusterError):
            raise error

    def act(self, name: str, step: str) -> None:
        getattr(self.kubernetes, step)(self.kubernetes.objects[name])

    def begin(self) -> None:
        self.attempts += 1
        if self.attempts > MOST_ATTEMPTS:
            raise Wrong("attempt after attempt fails")
        self._start(self.attempt)

    def _start(self, what: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        self.processes.append(None)
        number = len(self.processes) - 1
        self.processes[number] = Process(self, number, self.token, what)

    def _instants(self) -> list[float]:
        wakes = [one.wakes for one in self.alive if not one.frozen and one.call is None]
        return [*wakes, *(one for one in self.kubernetes.instants() if one > self.kubernetes.now)]

    def pass_time(self) -> None:
        self.kubernetes.pass_time(max(self.kubernetes.now, min(self._instants())))
        for one in self.alive:
            if not one.frozen and one.call is None:
                self._run(one)

    # Faults.

    def end(self, number: int) -> None:
        """SIGKILL."""
        self.faults_left -= 1
        self.processes[number] = None

    def freeze(self, number: int) -> None:
        """The next attempt begins, and this process continues at any later moment."""
        self.faults_left -= 1
        process = self.processes[number]
        assert process is not None
        process.frozen = True

    def thaw(self, number: int) -> None:
        process = self.processes[number]
        assert process is not None
        process.frozen = False

    def break_cluster(self, name: str, what: str) -> None:
        self.faults_left -= 1
        found = self.kubernetes.objects[name]
        assert found.head is not None
        if what == "raycluster":
            found.head = None
        elif what == "head":
            self.kubernetes.make_cluster(found)
        else:
            for job in found.head.jobs.values():
                job.status = job.status if job.status.is_terminal else JobStatus.FAILED

    def arrive(self, number: int) -> None:
        """A request whose sender has given it up is done."""
        with contextlib.suppress(ClusterError):
            self.late.pop(number)()

    def suspend(self, name: str) -> None:
        """Kueue takes the quota away."""
        self.faults_left -= 1
        self.kubernetes.objects[name].suspended = True

    def admit(self, name: str) -> None:
        found = self.kubernetes.objects[name]
        found.suspended = False
        if found.status == "Suspended":
            found.status = ""

    def delete(self, name: str) -> None:
        self.faults_left -= 1
        self.kubernetes.delete(name, None)

    def lose_operator(self) -> None:
        self.faults_left -= 1
        self.kubernetes.away = True

    def return_operator(self) -> None:
        self.kubernetes.away = False

    def clear(self, kind: str) -> None:
        """A user clears the task; its process is killed, or continues later."""
        self.faults_left -= 1
        for number, one in enumerate(self.processes):
            if one is not None and kind == "kill":
                self.processes[number] = None
            elif one is not None:
                one.frozen = True
        self.token = "try2-run"

    def mark_failed(self) -> None:
        self.faults_left -= 1
        self.over = True
        self.processes = [None for _ in self.processes]
        self._start(self.kill)

    # Checks.

    def _is_followed(self, uid: str) -> bool:
        return any(one.follows == uid and not one.frozen for one in self.alive)

    def state(self) -> Hashable:
        self._check_nothing_stays()
        processes = tuple(
            one and (one.token, one.call and one.call.name, one.frozen, one.follows, one.seen, one.wakes)
            for one in self.processes
        )
        own = (self.token, self.over, tuple(self.results), self.attempts, self.secrets, self.faults_left)
        own += (len(self.late), self.bounded)
        return hash((self.kubernetes.state(), processes, own))

    def _check_nothing_stays(self) -> None:
        """Check that all clusters go if everything that looks at them dies now."""
        state = (self.kubernetes.state(), self.bounded)
        if state in self.checked:
            return
        self.checked.add(state)
        # Kueue may suspend it without a follower; the deadline then counts from its next start.
        restart = max(
            (one.spec["activeDeadlineSeconds"] for one in self.kubernetes.objects.values()), default=0
        )
        longest = PRE_RUNNING + WINDOW + TTL + GRACE + (restart if "suspend" in self.faults else 0)
        for seconds in {longest, max(0, self.bounded - self.kubernetes.now) + TTL + GRACE}:
            if seconds == float("inf"):
                continue
            alone = copy.deepcopy(self._objects_only())
            alone.be_alone(seconds)
            if any(one.head is not None for one in alone.objects.values()):
                raise Wrong(f"a cluster is there {seconds} s after the last look")

    def _objects_only(self) -> Kubernetes:
        alone = copy.copy(self.kubernetes)
        alone.followed = _nobody
        return alone

    def ends(self) -> str:
        """Check the end, at which nothing runs; return its kind."""
        self.kubernetes.be_alone(PRE_RUNNING + WINDOW + TTL + GRACE)
        if not self.over and self.results.count(self.token) != 1:
            raise Wrong(f"results on record: {self.results}")
        return "ended by a user" if self.over else "success"

    def close(self) -> None:
        for one in self.alive:
            one.loop._tasks.clear()


def _nobody(uid: str) -> bool:
    return False
