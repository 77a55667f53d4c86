# SPDX-License-Identifier: Apache-2.0
"""Canary secrets in every channel, and runs that end in every way: no artefact contains one.

The exceptions are documented: the environment of processes, and Airflow's table of connections, which has the
key's id as a login and encrypts the rest.
"""

from __future__ import annotations

import re
import secrets as random_tokens
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import psutil
import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.submit.request import build_batch_request
from airflow_provider_raybatch.contract.secrets import SEAL_KEY_VARIABLE
from airflow_provider_raybatch.contract.secrets import Secrets as JobSecrets
from tests.support.specs import submitted

from ..conftest import RayCluster, started
from .conftest import connect
from .lake import Lake, locked_lake
from .ray_jobs import RayJobs
from .rest import AirflowApi, Task
from .secrecy import (
    CommandLines,
    Secrets,
    left_by_airflow,
    left_in_files,
    left_in_objects,
    secrets_packages,
    session_folder,
    shown_by_airflow,
    shown_by_ray,
)
from .stack import AirflowStack
from .waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.thorough("secrets sought everywhere after each kind of end; test_secured seeks some always"),
]

SLOWLY = {"seconds_per_token": 20}
PACKAGE_SECONDS = 90
"""How long this cluster keeps a package that nothing refers to; Ray's default is 600."""


@dataclass(frozen=True)
class Place:
    """Places of the runs, and the canaries."""

    lake: Lake
    cluster: RayCluster
    jobs: RayJobs
    secrets: Secrets
    key_id: Secrets


@pytest.fixture(scope="module")
def place(api: AirflowApi) -> Iterator[Place]:
    seal_key = Fernet.generate_key().decode()
    header, cookie, hub = (f"{name}{random_tokens.token_hex(16)}" for name in ("header", "cookie", "hf_"))
    environment = {
        SEAL_KEY_VARIABLE: seal_key,
        "RAY_RUNTIME_ENV_TEMPORARY_REFERENCE_EXPIRATION_S": str(PACKAGE_SECONDS),
        # Ray Data writes the arguments of its operators into the session's folder.
        "RAY_enable_export_api_write_config": "EXPORT_DATASET_METADATA",
    }
    extra = {
        "secret_headers": {"X-Api-Key": header},
        "secret_cookies": {"session": cookie},
        "secret_seal_key": seal_key,
    }
    with (
        locked_lake(for_a_session=True) as lake,
        started(env=environment) as cluster,
        closing(connect(api, "ray_canary", cluster, extra)) as jobs,
    ):
        lake.connect(api, "lake_canary")
        wrong = replace(lake, secret=f"wrong{random_tokens.token_hex(16)}")
        wrong.connect(api, "lake_locked")
        api.connection("hub_canary", "generic", password=hub)
        secrets = {
            "AWS key": lake.secret,
            "wrong AWS key": wrong.secret,
            "AWS session token": str(lake.session_token),
            "Hugging Face token": hub,
            "Ray's token": str(cluster.address.token),
            "header": header,
            "cookie": cookie,
            "seal key": seal_key,
        }
        yield Place(lake, cluster, jobs, Secrets(secrets), Secrets({"AWS key id": lake.key_id}))


@pytest.fixture(scope="module")
def unread_package(place: Place) -> tuple[str, float]:
    """The package of a job that ended before it read its credentials, and the time of its upload."""

    async def submit() -> str:
        async with RayJobsClient(place.cluster.address) as client:
            request = await build_batch_request(
                client,
                submitted(),
                key="ab" * 32,
                secrets=JobSecrets(hf_token=SecretStr("never-read")),
            )
            await client.submit(replace(request, entrypoint="true"))
        return request.submission_id

    submission_id = run_blocking(submit())
    uploaded = time.monotonic()

    def ended() -> bool:
        wanted = {"submission_id": submission_id, "status": "SUCCEEDED"}
        return any(wanted.items() <= job.items() for job in place.jobs.all())

    wait_for("the end of the job", ended, 60)
    (name,) = secrets_packages(session_folder(place.jobs))
    return name, uploaded


@pytest.fixture(scope="module")
def command_lines(place: Place) -> Iterator[CommandLines]:
    with CommandLines(place.secrets) as watch:
        yield watch


@pytest.fixture(scope="module")
def tasks(
    api: AirflowApi, place: Place, unread_package: tuple[str, float], command_lines: CommandLines
) -> dict[str, Task]:
    """One task for each kind of end."""
    place.lake.write_rows("in/rows.jsonl", ({"text": f"text {n}"} for n in range(20)))

    def start(name: str, dag_id: str, **conf: object) -> Task:
        given = {
            "ray_conn_id": "ray_canary",
            "aws_conn_id": "lake_canary",
            "hf_conn_id": "hub_canary",
            "source": "s3://lake/in/",
            "destination": f"s3://lake/out/{name}",
        }
        return api.trigger(dag_id, **{**given, **conf}).task("infer")

    tasks = {
        "success": start("success", "batch_deferrable"),
        "failure": start("failure", "batch_deferrable", engine_args={"fail_pattern": "text 1"}),
        "locked": start("locked", "batch_blocking", aws_conn_id="lake_locked"),
    }
    tasks["success"].run.wait(timeout=300)
    for name in ("failure", "locked"):
        tasks[name].run.wait("failed", timeout=300)

    # Each is ended in the middle; together, because they mostly wait.
    tasks["kill"] = start("kill", "once_blocking", engine_args=SLOWLY)
    tasks["crash"] = start("crash", "batch_deferrable", engine_args=SLOWLY)
    jobs = {name: job_with_credentials(place, tasks[name]) for name in ("kill", "crash")}
    psutil.Process(tasks["kill"].read()["pid"]).kill()
    psutil.Process(int(jobs["crash"]["driver_info"]["pid"])).kill()
    tasks["kill"].run.wait("failed", timeout=300)
    place.jobs.wait_for_one(tasks["kill"], "SUCCEEDED", "STOPPED", "FAILED", timeout=300)
    tasks["crash"].run.wait(timeout=300)
    return tasks


def job_with_credentials(place: Place, task: Task) -> dict[str, Any]:
    """Return the task's job once it has replicas: by then its driver has read the credentials."""

    def credentials_read() -> dict[str, Any] | None:
        jobs = place.jobs.of(task)
        return jobs[-1] if jobs and place.jobs.replicas(jobs[-1]) else None

    return wait_for("a job that has its credentials", credentials_read, 300, task.run.evidence)


def test_every_run_ended_its_way(tasks, place):
    tries = {name: task.read()["try_number"] for name, task in tasks.items()}
    assert tries == {"success": 1, "failure": 1, "locked": 1, "kill": 1, "crash": 2}
    assert [job["status"] for job in place.jobs.of(tasks["crash"])] == ["FAILED", "SUCCEEDED"]
    (line,) = [line for line in tasks["failure"].log() if line.startswith("RayBatchFailException: ")]
    assert " failed: max_error_fraction: " in line
    (folder,) = re.findall(
        r"are in s3://lake/(out/failure/dead_letter/\S+): \d+ in step 'engine' \(row", line
    )
    assert any(b'"step": "engine"' in letters for letters in place.lake.contents(f"{folder}/").values())
    assert tasks["success"].xcom()["rows"] == tasks["crash"].xcom()["rows"] == 20


def test_airflow_shows_no_secret(tasks, place):
    for name, task in tasks.items():
        shown = dict(shown_by_airflow(task))
        assert b"ray_canary" in shown["the task instance"], name
        assert len(shown) > 1 + task.read()["try_number"], name
        assert not place.secrets.leaks(shown.items()), name
        assert not place.key_id.leaks(shown.items()), name


def test_ray_shows_no_secret(tasks, place):
    shown = dict(shown_by_ray(place.jobs))
    assert b"raybatch" in shown["Ray's /api/jobs/"]
    assert b"Replica" in shown["Ray's /api/v0/actors?detail=1&limit=10000"]
    for kind in ("tasks", "workers", "runtime_envs", "jobs", "nodes"):
        assert b'"result": true' in shown[f"Ray's /api/v0/{kind}?detail=1&limit=10000"], kind
    assert not place.secrets.leaks(shown.items())
    assert not place.key_id.leaks(shown.items())


def test_destinations_hold_no_secret(tasks, place):
    left = dict(left_in_objects(place.lake.contents("out/")))
    for name in ("/manifest.json", "_raybatch/journal/", "_raybatch/parts/", "data/"):
        assert any(name in key for key in left), name
    assert not place.secrets.leaks(left.items())
    assert not place.key_id.leaks(left.items())


def test_files_hold_no_secret(tasks, place, airflow: AirflowStack):
    left = {**dict(left_by_airflow(airflow)), **dict(left_in_files(session_folder(place.jobs)))}
    assert b"raybatch" in left["Airflow's database"]
    assert len([content for content in left.values() if b"raybatch" in content]) > 10
    arguments = b"".join(content for name, content in left.items() if "DATASET_METADATA" in name)
    assert arguments.count(b"HF_TOKEN") >= len(tasks) - 1  # all but one reached their replicas
    assert not place.secrets.leaks(left.items())


def test_command_lines_show_no_secret(tasks, command_lines):
    assert any("airflow_provider_raybatch.job" in line for line in command_lines.seen)
    assert not command_lines.leaks


def test_every_package_is_gone(tasks, place, unread_package):
    name, uploaded = unread_package
    read = [each for each in secrets_packages(session_folder(place.jobs)) if each != name]
    assert len(read) >= len(tasks)
    assert not [each for each in read if place.jobs.has_package(each)]
    # No job read this package: Ray deletes it by itself.
    time.sleep(max(0.0, uploaded + PACKAGE_SECONDS + 10 - time.monotonic()))
    assert not place.jobs.has_package(name)
