# SPDX-License-Identifier: Apache-2.0
"""A cluster that wants a token, and S3 that wants keys (moto's server: the real API over HTTP)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from airflow_provider_raybatch.dataset import open_dataset

from ..conftest import RayCluster
from .assets import event_of, run_after
from .conftest import MODES, connect
from .ray_jobs import RayJobs
from .rest import AirflowApi, Task
from .stack import AirflowStack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 40


@dataclass(frozen=True)
class Lake:
    """An S3 server, and the only key that opens it."""

    url: str
    key_id: str
    secret: str

    def client(self, service: str = "s3") -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.key_id,
            aws_secret_access_key=self.secret,
        )


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    """A server with a bucket ``lake``, which answers 403 to every other key."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    open_door = Lake(f"http://{host}:{port}", "anybody", "anything")
    iam = open_door.client("iam")
    iam.create_user(UserName="lake")
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_user_policy(UserName="lake", PolicyName="all", PolicyDocument=policy)
    key = iam.create_access_key(UserName="lake")["AccessKey"]
    # From here on moto checks keys and signatures, in all servers of this process.
    requests.post(f"{open_door.url}/moto-api/reset-auth", data=b"0", timeout=10).raise_for_status()
    lake = Lake(open_door.url, key["AccessKeyId"], key["SecretAccessKey"])
    lake.client().create_bucket(Bucket="lake")
    yield lake
    requests.post(f"{open_door.url}/moto-api/reset-auth", data=b"Infinity", timeout=10).raise_for_status()
    server.stop()


@pytest.fixture(scope="module")
def token_jobs(api: AirflowApi, token_ray_cluster: RayCluster) -> Iterator[RayJobs]:
    with closing(connect(api, "ray_token", token_ray_cluster)) as jobs:
        yield jobs


@pytest.fixture(scope="module")
def tasks(airflow: AirflowStack, api: AirflowApi, token_jobs: RayJobs, lake: Lake) -> dict[str, Task]:
    """A finished batch of each mode, from S3 to S3 over the secured cluster; one is the example's."""
    api.connection(
        "lake",
        "aws",
        login=lake.key_id,
        password=lake.secret,
        extra={"endpoint_url": lake.url, "region_name": "us-east-1"},
    )
    rows = [{"topic_id": number, "topic": f"topic {number}"} for number in range(ROWS)]
    body = "".join(json.dumps(row) + "\n" for row in rows)
    lake.client().put_object(Bucket="lake", Key="in/rows.jsonl", Body=body.encode())
    example = {
        "SOURCE": "s3://lake/in/",
        "OUTPUT": "s3://lake/out/example",
        "ENGINE": "echo",
        "CONN_ID": "ray_token",
        "AWS_CONN_ID": "lake",
        "DEFERRABLE": "true",
    }
    airflow.show_dags({f"RAYBATCH_EXAMPLE_{name}": value for name, value in example.items()})
    runs = {
        "deferrable": api.trigger("nightly_synthetic_data", min_share=0),  # an echo is no question
        "blocking": api.trigger(
            "batch_blocking",
            ray_conn_id="ray_token",
            aws_conn_id="lake",
            source="s3://lake/in/",
            destination="s3://lake/out/batch",
            prompt="Say {row.topic}",
        ),
    }
    task_ids = {"deferrable": "generate", "blocking": "infer"}
    return {mode: runs[mode].wait(timeout=300).task(task_ids[mode]) for mode in MODES}


@pytest.fixture
def as_airflow(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
    """The connection as this process, which is no part of the stack, finds it."""
    connection = {
        "conn_type": "aws",
        "login": lake.key_id,
        "password": lake.secret,
        "extra": {"endpoint_url": lake.url, "region_name": "us-east-1"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))


def test_cluster_and_bucket_are_locked(token_ray_cluster, lake):
    assert requests.get(f"{token_ray_cluster.url}/api/jobs/", timeout=10).status_code == 401
    for wrong in (replace(lake, key_id="AKIANOBODY"), replace(lake, secret="guessed")):
        with pytest.raises(ClientError, match="403"):
            wrong.client().head_bucket(Bucket="lake")


@pytest.mark.parametrize("mode", MODES)
def test_dataset_is_in_the_bucket(mode, tasks, token_jobs, lake, as_airflow):
    task = tasks[mode]
    result = task.xcom()
    assert result["bucket"] == "lake"
    assert result["uri"] == f"s3://lake/{result['key_prefix']}".rstrip("/")
    listed = lake.client().list_objects_v2(Bucket="lake", Prefix=result["key_prefix"])["Contents"]
    dataset = open_dataset(result, "lake")
    assert dataset.files == [f"s3://lake/{entry['Key']}" for entry in listed]
    answers = dataset.to_arrow().to_pylist()
    assert len(answers) == ROWS == dataset.manifest.counts.ok
    assert all(row["topic"] in row["response"] for row in answers)
    (job,) = token_jobs.of(task)
    assert job["submission_id"] == result["submission_id"]


def test_tasks_and_dags_behind_it_read_from_the_bucket(tasks):
    run, result = tasks["deferrable"].run, tasks["deferrable"].xcom()
    assert run.task("quality_gate").xcom() == 0
    assert event_of(run, "load")["extra"]["manifest_uri"] == result["manifest_uri"]
    (told,) = run_after(run, "load").wait().task("report").xcom()
    assert (told["uri"], told["rows"]) == (result["uri"], ROWS)


@pytest.mark.parametrize("mode", MODES)
def test_keys_are_nowhere_to_be_read(mode, tasks, token_jobs, token_ray_cluster, lake):
    task = tasks[mode]
    result = task.xcom()
    submission_id = result["submission_id"]
    s3 = lake.client()
    bookkeeping = [entry["Key"] for entry in s3.list_objects_v2(Bucket="lake", Prefix="out/")["Contents"]]
    small = [key for key in bookkeeping if key.endswith(".json")]
    assert any("manifest" in key for key in small)
    shown = {
        "the Jobs API's answer": token_jobs.text(f"/api/jobs/{submission_id}"),
        "the Jobs API's list": token_jobs.text("/api/jobs/"),
        "the driver's log": token_jobs.log(submission_id),
        "the task's log": json.dumps(task.log_events()),
        "the rendered fields": json.dumps(task.read()["rendered_fields"]),
        "the XComs": json.dumps([task.xcom(key) for key in task.xcom_keys()]),
        **{key: s3.get_object(Bucket="lake", Key=key)["Body"].read().decode() for key in small},
    }
    assert "ray_token" in shown["the rendered fields"]
    assert submission_id in shown["the Jobs API's list"]
    token = str(token_ray_cluster.address.token)
    for where, text in shown.items():
        for secret in (lake.secret, lake.key_id, token):
            assert secret not in text, where


def test_keys_are_in_no_file(tasks, token_ray_cluster, ray_home, lake, airflow):
    """Logs, the metadata database, what Ray unpacked: whatever the two wrote."""
    seen = 0
    for file in [*files(airflow.home), *files(ray_home)]:
        content = file.read_bytes()
        seen += b"raybatch" in content
        for secret in (lake.secret, str(token_ray_cluster.address.token)):
            assert secret.encode() not in content, file
    assert seen > 10


def test_credentials_are_gone_from_the_package_store(tasks, token_ray_cluster, ray_home):
    """Each job took them away when it had read them."""
    specs = [json.loads(file.read_text()) for file in files(ray_home) if file.name == "spec.json"]
    names = [spec["submission"]["secrets_package"] for spec in specs]
    assert len(set(names)) >= len(tasks)
    headers = {"Authorization": f"Bearer {token_ray_cluster.address.token}"}
    for name in names:
        url = f"{token_ray_cluster.url}/api/packages/gcs/{name}"
        assert requests.get(url, headers=headers, timeout=10).status_code == 404


@pytest.fixture(scope="module")
def ray_home(token_jobs: RayJobs) -> Path:
    """Folder of the secured cluster's session."""
    session = json.loads(token_jobs.text("/api/version"))["session_name"]
    (home,) = Path(tempfile.gettempdir()).glob(f"rb-*/{session}")
    return home


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
