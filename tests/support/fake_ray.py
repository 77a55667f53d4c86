# SPDX-License-Identifier: Apache-2.0
"""A Ray dashboard's Jobs API without a Ray behind it: real HTTP, fake jobs.

Speaks the wire interface of Ray 2.60 as far as the provider uses it, with its oddities: a submission id that
was used before is answered with 500 "already exists", an unknown job with 404 "does not exist", and a wrong
token with 401 or 403. Here so that the face can be tested where no Ray is installed; real clusters are the
integration tests' affair.
"""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from airflow_provider_raybatch.contract.control import Order, order_package, read_order
from airflow_provider_raybatch.contract.events import Committed, Event, line
from airflow_provider_raybatch.contract.manifest import Summary, Tokens

Answer = tuple[int, str]


@dataclass
class Script:
    """What a job does: writes `lines`, lasts `seconds`, writes `last`, ends as `status`."""

    lines: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    seconds: float = 0.0
    status: str = "SUCCEEDED"
    message: str = ""
    error_type: str | None = None


@dataclass
class Job:
    body: dict[str, Any]
    script: Script
    started: float = field(default_factory=time.time)
    stopped: bool = False

    @property
    def status(self) -> str:
        if self.stopped:
            return "STOPPED"
        return "RUNNING" if time.time() < self.started + self.script.seconds else self.script.status

    def details(self) -> dict[str, Any]:
        ended = self.status != "RUNNING"
        return {
            "type": "SUBMISSION",
            "submission_id": self.body["submission_id"],
            "job_id": "01000000",
            "status": self.status,
            "entrypoint": self.body["entrypoint"],
            "message": self.script.message if ended else "",
            "error_type": self.script.error_type if ended and not self.stopped else None,
            "metadata": self.body.get("metadata") or {},
            "runtime_env": self.body.get("runtime_env") or {},
            "start_time": int(self.started * 1000),
            "end_time": int(time.time() * 1000) if ended else None,
            "driver_node_id": "node-1",
            "driver_exit_code": None,
        }

    def log(self) -> str:
        ended = self.status not in {"RUNNING", "STOPPED"}
        return "".join(f"{text}\n" for text in [*self.script.lines, *(self.script.last if ended else [])])


class FakeRay:
    """The state behind the API, for tests to look at and to meddle with.

    :param token: bearer token that every request must carry.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token = token
        self.session_name = "session_2026-01-01_00-00-00"
        self.jobs: dict[str, Job] = {}
        self.packages: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.script: Callable[[FakeRay, dict[str, Any]], Script] = committing
        self.down = False
        self.drop_next_answer_to_post = False
        self.url = ""

    @property
    def active(self) -> list[str]:
        return [name for name, job in self.jobs.items() if job.status == "RUNNING"]

    def spec(self, body: dict[str, Any]) -> dict[str, Any]:
        """The spec that travelled with a batch inference."""
        name = body["runtime_env"]["working_dir"].removeprefix("gcs://")
        with zipfile.ZipFile(io.BytesIO(self.packages[name])) as archive:
            spec: dict[str, Any] = json.loads(archive.read("spec.json"))
        return spec

    def key(self, body: dict[str, Any]) -> str:
        """The key that travelled with it."""
        name = self.spec(body)["submission"]["secrets_package"]
        with zipfile.ZipFile(io.BytesIO(self.packages[name])) as archive:
            return archive.read("key").decode()

    def line(self, body: dict[str, Any], event: Event, number: int = 0) -> str:
        """An event as the batch inference's driver writes it."""
        return line(event, self.key(body), number)

    def order(self, body: dict[str, Any]) -> Order | None:
        """What its follower told it last."""
        key = self.key(body)
        content = self.packages.get(order_package(key))
        return None if content is None else read_order(content, key)

    def restart(self) -> None:
        """The head comes back without its memory, as it does without GCS fault tolerance."""
        self.jobs.clear()
        self.session_name = "session_2026-02-02_00-00-00"

    def answer(self, method: str, path: str, query: dict[str, list[str]], content: bytes) -> Answer:
        match method, path.strip("/").split("/"):
            case "GET", ["api", "version"]:
                version = {"version": "4", "ray_version": "2.60.0", "session_name": self.session_name}
                return 200, json.dumps(version)
            case "GET", ["api", "packages", _, name]:
                return (200, "{}") if name in self.packages else (404, f"Package {name} does not exist")
            case "PUT", ["api", "packages", _, name]:
                self.packages[name] = content
                return 200, "{}"
            case "POST", ["api", "jobs"]:
                return self._submit(json.loads(content))
            case "GET", ["api", "jobs"]:
                return 200, json.dumps([job.details() for job in self.jobs.values()])
            case _, ["api", "jobs", name, *_] if name not in self.jobs:
                return 404, f"Job {name} does not exist"
            case "GET", ["api", "jobs", name]:
                return 200, json.dumps(self.jobs[name].details())
            case "GET", ["api", "jobs", name, "logs"]:
                return 200, json.dumps({"logs": self.jobs[name].log()})
            case "POST", ["api", "jobs", name, "stop"]:
                running = self.jobs[name].status == "RUNNING"
                self.jobs[name].stopped = self.jobs[name].stopped or running
                return 200, json.dumps({"stopped": running})
            case "GET", ["api", "v0", "logs", "file"]:
                name = query["filename"][0].removeprefix("job-driver-").removesuffix(".log")
                return 200, self.jobs[name].log()
            case _:
                return 404, "404: Not Found"

    def _submit(self, body: dict[str, Any]) -> Answer:
        name = body["submission_id"]
        if name in self.jobs:
            return 500, f"RuntimeError: Request failed with status code 400: Job with {name} already exists."
        self.jobs[name] = Job(body, self.script(self, body))
        return 200, json.dumps({"job_id": name, "submission_id": name})


def summary(uri: str = "s3://lake/out/data/c1", rows: int = 2, errors: int = 1) -> Summary:
    root = uri.partition("/data/")[0]
    return Summary(
        uri=uri,
        manifest_uri=f"{root}/manifests/c1.json",
        dead_letter_uri=f"{root}/dead_letter/c1" if errors else None,
        format="parquet",
        rows=rows,
        resumed=rows // 2,
        errors=errors,
        tokens=Tokens(input=10, cached=4, output=6),
    )


def committing(ray: FakeRay, body: dict[str, Any]) -> Script:
    """A batch inference that ends well at once; any other job does, too."""
    if "spec.json" not in body["entrypoint"]:
        return Script(lines=["done"])
    uri = f"{ray.spec(body)['destination']['uri']}/data/c1"
    return Script(lines=["reading"], last=[ray.line(body, Committed(summary=summary(uri)))])


def lasting(seconds: float) -> Callable[[FakeRay, dict[str, Any]], Script]:
    """As :func:`committing`, but the job takes its time."""

    def script(ray: FakeRay, body: dict[str, Any]) -> Script:
        done = committing(ray, body)
        done.seconds = seconds
        return done

    return script


@contextmanager
def serving(ray: FakeRay) -> Iterator[FakeRay]:
    """Serve `ray` on a free port of the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            ray.requests.append((self.command, parts.path))
            if ray.down:
                return self._reply(503, "no backend")
            if ray.token is not None:
                given = self.headers.get("Authorization")
                if given != f"Bearer {ray.token}":
                    return self._reply(401 if given is None else 403, "Unauthorized")
            code, text = ray.answer(self.command, unquote(parts.path), parse_qs(parts.query), content)
            if self.command == "POST" and parts.path == "/api/jobs/" and ray.drop_next_answer_to_post:
                ray.drop_next_answer_to_post = False
                self.close_connection = True
                return None
            return self._reply(code, text)

        do_GET = do_PUT = do_POST = _handle  # noqa: N815 - the names that http.server calls

        def _reply(self, code: int, text: str) -> None:
            content = text.encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ray.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield ray
    finally:
        server.shutdown()
        server.server_close()
