# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster's answers about its jobs, without the code under test."""

from __future__ import annotations

from typing import Any

import httpx

from .rest import Task
from .waiting import wait_for


class RayJobs:
    """The Jobs API of one cluster.

    :param url: URL of the dashboard.
    :param token: token of a cluster that requires one.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=60)

    def close(self) -> None:
        self._http.close()

    def text(self, path: str) -> str:
        answer = self._http.get(path)
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return answer.text

    def answer(self, path: str) -> str:
        """Return any answer, errors too: Ray 2.60 answers some requests about its events with 500."""
        return self._http.get(path).text

    def all(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = self._http.get("/api/jobs/").raise_for_status().json()
        return jobs

    def of(self, task: Task) -> list[dict[str, Any]]:
        """Return every job that was ever submitted for this task, the oldest first."""
        wanted = {
            "raybatch.dag_id": task.run.dag_id,
            "raybatch.run_id": task.run.run_id,
            "raybatch.task_id": task.task_id,
            "raybatch.map_index": str(task.map_index),
        }
        jobs = [job for job in self.all() if wanted.items() <= (job["metadata"] or {}).items()]
        return sorted(jobs, key=lambda job: job["start_time"])

    def wait_for_one(self, task: Task, *statuses: str, timeout: float = 60.0) -> dict[str, Any]:
        """Wait until the task's only job has one of these statuses."""

        def job_in_status() -> dict[str, Any] | None:
            jobs = self.of(task)
            assert len(jobs) <= 1, jobs
            return jobs[0] if jobs and jobs[0]["status"] in statuses else None

        return wait_for(f"a job that is {' or '.join(statuses)}", job_in_status, timeout, task.run.evidence)

    def stop(self, submission_id: str) -> None:
        self._http.post(f"/api/jobs/{submission_id}/stop").raise_for_status()

    def log(self, submission_id: str) -> str:
        logs: str = self._http.get(f"/api/jobs/{submission_id}/logs").raise_for_status().json()["logs"]
        return logs

    def replicas(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the living replicas of a job, without the actors that Ray Data leaves on a cluster."""
        living = [actor for actor in self._actors(job) if actor["state"] == "ALIVE"]
        return [actor for actor in living if "Replica" in actor["class_name"]]

    def actors(self, job: dict[str, Any]) -> set[str]:
        """Return the classes of all actors that a job has had."""
        return {actor["class_name"] for actor in self._actors(job)}

    def _actors(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self._http.get("/api/v0/actors", params={"limit": 10_000}).raise_for_status().json()
        actors = answer["data"]["result"]["result"]
        return [actor for actor in actors if job["job_id"] and actor["job_id"] == job["job_id"]]

    def datasets(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what the dashboard shows of the datasets of a job."""
        answer = self._http.get(f"/api/data/datasets/{job['job_id']}").raise_for_status().json()
        datasets: list[dict[str, Any]] = answer["datasets"]
        return datasets

    def has_package(self, name: str) -> bool:
        """Return whether the cluster's store holds a package."""
        answer = self._http.get(f"/api/packages/gcs/{name}")
        assert answer.status_code in {200, 404}, answer.text
        return answer.status_code == httpx.codes.OK
