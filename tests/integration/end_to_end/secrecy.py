# SPDX-License-Identifier: Apache-2.0
"""All places where a secret could be read: everything that Airflow, Ray and a batch show or leave."""

from __future__ import annotations

import base64
import io
import json
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import psutil
import pyarrow.parquet as pq

from .postgres import rows
from .ray_jobs import RayJobs
from .rest import Task
from .stack import AirflowStack

_PATHS_OF_RAY = (
    "/api/jobs/",
    *(
        f"/api/v0/{kind}?detail=1&limit=10000"
        for kind in (
            "actors", "jobs", "nodes", "objects", "placement_groups", "runtime_envs", "tasks", "workers",
            "cluster_events",
        )
    ),
    "/api/v0/actors/summarize", "/api/v0/tasks/summarize", "/api/v0/tasks/timeline",
    "/api/v0/objects/summarize", "/api/v0/cluster_metadata", "/api/component_activities",
    "/api/cluster_status", "/logical/actors", "/nodes?view=summary", "/events",
)  # fmt: skip


class Secrets:
    """Secrets that must not be found, each with a public name.

    :param values: the secrets by name.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._forms = {
            name: {
                value.encode(),
                quote(value, safe="").encode(),
                json.dumps(value)[1:-1].encode(),
                base64.b64encode(value.encode()).rstrip(b"=")[:-1],
            }
            for name, value in values.items()
        }

    def within(self, content: bytes) -> list[str]:
        """Return the names of the secrets in `content`."""
        return [name for name, forms in self._forms.items() if any(form in content for form in forms)]

    def leaks(self, shown: Iterable[tuple[str, bytes]]) -> list[str]:
        """Return each place with a secret, and the secret's name."""
        return [f"{where}: {name}" for where, content in shown for name in self.within(content)]


class CommandLines:
    """Reads the command lines of all processes of this machine while it is entered."""

    def __init__(self, secrets: Secrets) -> None:
        self.leaks: set[str] = set()
        self.seen: set[str] = set()
        self._secrets = secrets
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.3):
            for process in psutil.process_iter(["name", "cmdline"]):
                line = "\0".join(process.info["cmdline"] or ())
                if line not in self.seen:
                    self.seen.add(line)
                    found = self._secrets.within(line.encode())
                    self.leaks |= {f"command line of {process.info['name']}: {name}" for name in found}


def shown_by_airflow(task: Task) -> Iterator[tuple[str, bytes]]:
    """Yield logs of all tries, rendered fields and XComs of a task."""
    read = task.read()
    yield "the task instance", json.dumps(read).encode()
    for number in range(1, read["try_number"] + 1):
        yield f"the log of try {number}", json.dumps(task.log_events(number)).encode()
    for key in task.xcom_keys():
        yield f"the XCom {key}", json.dumps(task.xcom(key)).encode()


def shown_by_ray(jobs: RayJobs) -> Iterator[tuple[str, bytes]]:
    """Yield the dashboard's answers about jobs, actors, tasks, workers and more, and the drivers' logs."""
    nodes = json.loads(jobs.text("/api/v0/nodes"))["data"]["result"]["result"]
    for path in (*_PATHS_OF_RAY, *(f"/nodes/{node['node_id']}" for node in nodes)):
        yield f"Ray's {path}", jobs.answer(path).encode()
    for job in jobs.all():
        if name := job["submission_id"]:
            yield f"Ray's job {name}", jobs.text(f"/api/jobs/{name}").encode()
            yield f"the driver's log {name}", jobs.log(name).encode()


def left_in_files(*folders: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file below the folders."""
    for folder in folders:
        for path in files(folder):
            yield str(path), path.read_bytes()


def left_by_airflow(airflow: AirflowStack) -> Iterator[tuple[str, bytes]]:
    """Yield Airflow's files and the rows of its database."""
    yield "Airflow's database", rows(airflow.database)
    yield from left_in_files(airflow.home, airflow.temp)


def left_in_objects(contents: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the bytes of objects, and the rows of Parquet files."""
    for key, content in contents.items():
        yield key, content
        if key.endswith(".parquet"):
            table = pq.read_table(io.BytesIO(content))
            yield f"{key}, read", json.dumps(table.to_pylist(), default=str).encode()
            yield f"{key}, schema", str(table.schema.metadata).encode()


def session_folder(jobs: RayJobs) -> Path:
    """Return the folder of a cluster's session on this machine."""
    session = json.loads(jobs.text("/api/version"))["session_name"]
    (home,) = Path(tempfile.gettempdir()).glob(f"rb-*/{session}")
    return home


def secrets_packages(session: Path) -> list[str]:
    """Return the names of the packages of credentials, from the specs that Ray unpacked."""
    specs = [json.loads(file.read_text()) for file in files(session) if file.name == "spec.json"]
    names = [spec["submission"]["secrets_package"] for spec in specs]
    return [name for name in names if name is not None]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
