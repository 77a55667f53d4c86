# SPDX-License-Identifier: Apache-2.0
"""A dashboard that speaks real HTTP and answers as Ray's does, with failures on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_raybatch.cluster.jobs_api import client as jobs
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.cluster.submit import resolve as submission

QUICK = RetryPolicy(attempts=3, first_wait=0.01)


@dataclass
class Answer:
    """An `abort` closes the connection instead of answering."""

    code: int = 200
    body: bytes = b""
    abort: bool = False


@dataclass
class Dashboard:
    """Jobs and packages in memory. `staged` answers come first, once each, for the requests they match."""

    url: str = ""
    session_name: str = "session_1"
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    packages: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    staged: list[tuple[str, str, Callable[[], Answer]]] = field(default_factory=list)
    stops_needed: int = 1
    bytes_of_logs: int = 0

    def stage(self, method: str, path: str, answer: Answer | Callable[[], Answer]) -> None:
        self.staged.append((method, path, answer if callable(answer) else lambda: answer))

    def count(self, method: str, path: str = "") -> int:
        return sum(1 for seen, where in self.requests if seen == method and where.startswith(path))

    def end(self, submission_id: str, status: str, **fields: Any) -> None:
        self.jobs[submission_id].update(status=status, **fields)

    def respond(self, method: str, target: str, body: bytes) -> Answer:
        url = urlsplit(target)
        self.requests.append((method, url.path))
        for index, (wanted, path, answer) in enumerate(self.staged):
            if wanted == method and url.path.startswith(path):
                del self.staged[index]
                return answer()
        parts = url.path.strip("/").split("/")[1:]
        match method, parts:
            case "GET", ["version"]:
                return _json({"ray_version": "2.60.0", "session_name": self.session_name})
            case "POST", ["jobs"]:
                return self.submit(json.loads(body))
            case "GET", ["jobs"]:
                return _json(list(self.jobs.values()))
            case "GET", ["jobs", name] if name in self.jobs:
                return _json(self.jobs[name])
            case "POST", ["jobs", name, "stop"] if name in self.jobs:
                return self.stop(self.jobs[name])
            case "GET", ["jobs", name, "logs"] if name in self.jobs:
                return _json({"logs": "".join(line + "\n" for line in self.logs.get(name, []))})
            case _, ["jobs", name, *_]:
                return Answer(404, f"Job {name} does not exist".encode())
            case "GET", ["v0", "logs", "file"]:
                query = parse_qs(url.query)
                name = query["filename"][0].removeprefix("job-driver-").removesuffix(".log")
                lines = self.logs.get(name, [])[-int(query["lines"][0]) :]
                answer = Answer(200, "".join(line + "\n" for line in lines).encode())
                self.bytes_of_logs += len(answer.body)
                return answer
            case "GET", ["packages", "gcs", name]:
                return Answer(200 if name in self.packages else 404, b"Package does not exist")
            case "PUT", ["packages", "gcs", name]:
                self.packages[name] = body
                return Answer()
        return Answer(404, b"404: Not Found")

    def submit(self, request: dict[str, Any]) -> Answer:
        name = request["submission_id"]
        if name in self.jobs:
            return Answer(500, f"ValueError: Job with submission_id {name} already exists.".encode())
        self.jobs[name] = {
            **request,
            "type": "SUBMISSION",
            "status": "RUNNING",
            "driver_node_id": "node",
            "start_time": 1000 + len(self.jobs),
        }
        return _json({"submission_id": name})

    def stop(self, job: dict[str, Any]) -> Answer:
        running = job["status"] in {"PENDING", "RUNNING"}
        self.stops_needed -= 1
        if running and self.stops_needed <= 0:
            job["status"] = "STOPPED"
        return _json({"stopped": running})


def _json(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode())


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    board = Dashboard()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            board.headers.append({name.lower(): value for name, value in self.headers.items()})
            answer = board.respond(self.command, self.path, body)
            if answer.abort:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(answer.code)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = handle_any  # noqa: N815 - http.server's names

        def log_message(self, format: str, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    board.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield board
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_STOP_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(submission, "_POST_WAIT", 0.01)


@pytest.fixture
async def client(dashboard: Dashboard) -> AsyncIterator[RayJobsClient]:
    async with RayJobsClient(ClusterAddress(dashboard.url), retries=QUICK) as opened:
        yield opened


@pytest.fixture
def answer() -> type[Answer]:
    return Answer
