# SPDX-License-Identifier: Apache-2.0
"""Ray's Jobs API without Ray: real HTTP, fake jobs.

Answers the provider's requests as ``job_head.py`` and ``state_head.py`` of Ray 2.56 to 2.60 do:

- a submission id is used once: 500 with "already exists", whatever the job's status;
- an unknown job: 404 "does not exist"; an unknown package: the same;
- a field that Ray doesn't know, or metadata that is not text: 400;
- to stop a PENDING job: ``true``, and nothing happens; a finished one: ``false``;
- a PENDING job has neither a node nor a log, and the log of a wrong node is a 500;
- a token that is missing: 401; a wrong one: 403.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from airflow_provider_raybatch.contract.events import Committed, Event, line
from airflow_provider_raybatch.contract.manifest import Savings, Summary
from airflow_provider_raybatch.contract.run_numbers import Tokens
from airflow_provider_raybatch.contract.submission import FollowerCommand, order_package, read_order

Answer = tuple[int, str]
"""Status code and body."""

NO_ANSWER: Answer = (0, "")
"""The connection is closed instead of an answer."""

_FIELDS = {
    "entrypoint", "submission_id", "job_id", "runtime_env", "metadata", "entrypoint_num_cpus",
    "entrypoint_num_gpus", "entrypoint_memory", "entrypoint_resources", "entrypoint_label_selector",
}  # fmt: skip

_MESSAGES = {
    "PENDING": "Job has not started yet.",
    "RUNNING": "Job is currently running.",
    "STOPPED": "Job was intentionally stopped.",
    "SUCCEEDED": "Job finished successfully.",
    "FAILED": "Job failed.",
}

_NODE = "node-1"


@dataclass
class Script:
    """A job waits for `pending` s, writes `lines`, runs, writes `last`, and ends as `status`.

    It runs for `seconds`, and until `requests` have asked for its state or its log.
    """

    lines: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    pending: float = 0.0
    seconds: float = 0.0
    requests: int = 0
    status: str = "SUCCEEDED"
    message: str = ""
    error_type: str | None = None


@dataclass
class Job:
    """A job; a test may change it and add to the lines of its log."""

    body: dict[str, Any]
    script: Script
    started: float
    lines: list[str]
    requests: int = 0
    asked_to_stop: int = 0
    stopped: bool = False

    @property
    def status(self) -> str:
        if self.stopped:
            return "STOPPED"
        age = time.time() - self.started
        if age < self.script.pending:
            return "PENDING"
        runs = age < self.script.pending + self.script.seconds or self.requests < self.script.requests
        return "RUNNING" if runs else self.script.status

    def end(self, status: str, message: str = "") -> None:
        self.script = Script(last=self.script.last, status=status, message=message)

    def details(self) -> dict[str, Any]:
        status = self.status
        ended = status in {"STOPPED", "SUCCEEDED", "FAILED"}
        on_node = status != "PENDING"
        return {
            "type": "SUBMISSION",
            "submission_id": self.body["submission_id"],
            "job_id": "01000000" if on_node else None,
            "driver_info": None,
            "status": status,
            "entrypoint": self.body["entrypoint"],
            "message": (self.script.message if ended else "") or _MESSAGES[status],
            "error_type": self.script.error_type if status == "FAILED" else None,
            "metadata": self.body.get("metadata") or {},
            "runtime_env": self.body.get("runtime_env") or {},
            "start_time": int(self.started * 1000),
            "end_time": int(time.time() * 1000) if ended else None,
            "driver_agent_http_address": "http://127.0.0.1:52365" if on_node else None,
            "driver_node_id": _NODE if on_node else None,
            "driver_exit_code": None,
        }

    def log(self) -> list[str]:
        if self.status == "PENDING":
            return []
        ended = self.status not in {"RUNNING", "STOPPED"}
        return [*self.lines, *(self.script.last if ended else [])]


_OTHER_DRIVER = {
    "type": "DRIVER", "submission_id": None, "job_id": "02000000", "status": "RUNNING", "entrypoint": "",
    "metadata": {}, "driver_node_id": None,
}  # fmt: skip
"""A driver that was not submitted, as each list of jobs may have."""


class FakeRay:
    """The state behind the API, for tests to read and to change.

    :param token: bearer token that every request must carry.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token = token
        self.session_name = "session_2026-01-01_00-00-00"
        self.jobs: dict[str, Job] = {}
        self.packages: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.script: Callable[[FakeRay, dict[str, Any]], Script] = committing
        self.stops_needed = 1
        """Requests until a running job ends, as one that ignores SIGTERM needs several."""
        self.bytes_of_logs = 0
        self.down = False
        self.url = ""
        self._staged: list[tuple[str, str, Callable[[Callable[[], Answer]], Answer]]] = []

    def at_poll(self, number: int, what: Callable[[], object]) -> None:
        """Do something before the answer to a poll of a running job's log, once.

        :param number: of the poll, from 1.
        """
        log = "/api/v0/logs/file"
        self.stage("GET", log, lambda answer: answer(), times=number - 1)
        self.stage("GET", log, lambda answer: (what(), answer())[1])

    def start_jobs(self) -> None:
        for job in self.jobs.values():
            job.script.pending = 0.0

    def end_jobs(self) -> None:
        for job in self.jobs.values():
            job.script.pending = job.script.seconds = 0.0
            job.script.requests = 0

    @property
    def active(self) -> list[str]:
        return [name for name, job in self.jobs.items() if job.status in {"PENDING", "RUNNING"}]

    def count(self, method: str, path: str = "") -> int:
        """Count the requests so far by `method` to paths that begin with `path`."""
        return sum(seen == method and where.startswith(path) for seen, where in self.requests)

    def stage(
        self, method: str, path: str, reply: Answer | Callable[[Callable[[], Answer]], Answer], times: int = 1
    ) -> None:
        """Replace Ray's answer to the next requests by `method` to paths that begin with `path`.

        :param reply: the answer, or a function that is called with Ray's own.
        """
        staged = reply if callable(reply) else lambda answer: reply
        self._staged += [(method, path, staged)] * times

    def unstage(self) -> None:
        self._staged.clear()

    def submit(self, **body: Any) -> Answer:
        return self._submit({"entrypoint": "true", **body})

    def spec(self, body: dict[str, Any]) -> dict[str, Any]:
        name = body["runtime_env"]["working_dir"].removeprefix("gcs://")
        with zipfile.ZipFile(io.BytesIO(self.packages[name])) as archive:
            spec: dict[str, Any] = json.loads(archive.read("spec.json"))
        return spec

    def key(self, body: dict[str, Any]) -> str:
        name = self.spec(body)["submission"]["secrets_package"]
        with zipfile.ZipFile(io.BytesIO(self.packages[name])) as archive:
            return archive.read("key").decode()

    def line(self, body: dict[str, Any], event: Event, number: int = 0) -> str:
        return line(event, self.key(body), number)

    def order(self, body: dict[str, Any]) -> FollowerCommand | None:
        """Return the last order of the task that follows the job."""
        key = self.key(body)
        content = self.packages.get(order_package(key))
        return None if content is None else read_order(content, key)

    def restart(self) -> None:
        """Restart the head without its memory, as without GCS fault tolerance."""
        self.jobs.clear()
        self.session_name = "session_2026-02-02_00-00-00"

    def respond(self, method: str, path: str, query: dict[str, list[str]], content: bytes) -> Answer:
        """Return the staged answer to the request, else :meth:`answer`."""

        def answer() -> Answer:
            return self.answer(method, path, query, content)

        for index, (wanted, beginning, reply) in enumerate(self._staged):
            if wanted == method and path.startswith(beginning):
                del self._staged[index]
                return reply(answer)
        return answer()

    def answer(self, method: str, path: str, query: dict[str, list[str]], content: bytes) -> Answer:
        match method, path.removeprefix("/").split("/"):
            case "GET", ["api", "version"]:
                version = {"version": "4", "ray_version": "2.60.0", "session_name": self.session_name}
                return 200, json.dumps(version)
            case "GET", ["api", "packages", protocol, name]:
                found = name in self.packages
                return (200, "") if found else (404, f"Package {protocol}://{name} does not exist")
            case "PUT", ["api", "packages", _, name]:
                self.packages[name] = content
                return 200, ""
            case "POST", ["api", "jobs", ""]:
                return self._submit(json.loads(content))
            case "GET", ["api", "jobs", ""]:
                return 200, json.dumps([*(job.details() for job in self.jobs.values()), _OTHER_DRIVER])
            case _, ["api", "jobs", name, *_] if name not in self.jobs:
                return 404, f"Job {name} does not exist"
            case "GET", ["api", "jobs", name]:
                self.jobs[name].requests += 1
                return 200, json.dumps(self.jobs[name].details())
            case "POST", ["api", "jobs", name, "stop"]:
                return self._stop(self.jobs[name])
            case "GET", ["api", "v0", "logs", "file"]:
                return self._log_file(query)
            case _:
                return 404, "404: Not Found"

    def _submit(self, body: dict[str, Any]) -> Answer:
        name = body["submission_id"]
        if unknown := body.keys() - _FIELDS:
            return 400, f"TypeError: __init__() got an unexpected keyword argument {min(unknown)!r}"
        if not all(isinstance(value, str) for value in (body.get("metadata") or {}).values()):
            return 400, "TypeError: metadata values must be strings"
        if name in self.jobs:
            return 500, (
                "RuntimeError: Request failed with status code 400: ValueError: Job with submission_id "
                f"{name} already exists. Please use a different submission_id."
            )
        script = self.script(self, body)
        latest = max((job.started for job in self.jobs.values()), default=0.0)
        started = max(time.time(), latest + 0.001)  # milliseconds apart, so that they have an order
        self.jobs[name] = Job(body, script, started, list(script.lines))
        return 200, json.dumps({"job_id": name, "submission_id": name})

    def _stop(self, job: Job) -> Answer:
        status = job.status
        if status == "RUNNING":
            job.asked_to_stop += 1
            job.stopped = job.asked_to_stop >= self.stops_needed
        return 200, json.dumps({"stopped": status in {"PENDING", "RUNNING"}})

    def _log_file(self, query: dict[str, list[str]]) -> Answer:
        name = query["filename"][0].removeprefix("job-driver-").removesuffix(".log")
        job = self.jobs.get(name)
        if job is None or job.status == "PENDING" or query["node_id"] != [_NODE]:
            return 500, f"Failed to find file {query['filename'][0]}"
        job.requests += 1
        text = self._log(job.log()[-int(query["lines"][0]) :])
        self.bytes_of_logs += len(text)
        return 200, text

    def _log(self, lines: list[str]) -> str:
        return "".join(f"{text}\n" for text in lines)


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
        main_failure="engine: it broke" if errors else None,
        tokens_paid=9,
        tokens_saved=8,
        tokens_generated=3,
        gpu_seconds=2.5,
        cost=1.5,
        currency="EUR",
        savings=Savings(reused=8),
        seconds=185.2,
    )


def committing(ray: FakeRay, body: dict[str, Any]) -> Script:
    """Let a batch inference, or any other job, succeed at once."""
    if "spec.json" not in body["entrypoint"]:
        return Script(lines=["done"])
    uri = f"{ray.spec(body)['destination']}/data/c1"
    return Script(lines=["reading"], last=[ray.line(body, Committed(summary=summary(uri)))])


def expected_result(ray: FakeRay, submission_id: str) -> dict[str, Any]:
    """Return the result of a task with the destination ``s3://lake/out/`` after :func:`committing`."""
    return {
        "uri": "s3://lake/out/data/c1",
        "bucket": "lake",
        "key_prefix": "out/data/c1/",
        "manifest_uri": "s3://lake/out/manifests/c1.json",
        "dead_letter_uri": "s3://lake/out/dead_letter/c1",
        "format": "parquet",
        "rows": 2,
        "resumed": 1,
        "reused": 0,
        "duplicates": 0,
        "chunks": None,
        "errors": 1,
        "tokens": {"input": 10, "cached": 4, "output": 6, "filled": 0, "reasoning": None},
        "tokens_paid": 9,
        "tokens_saved": 8,
        "tokens_generated": 3,
        "gpu_seconds": 2.5,
        "cost": 1.5,
        "currency": "EUR",
        "savings": {"resumed": 0, "reused": 8, "duplicates": 0, "filled": 0, "cost": None},
        "report_uri": None,
        "seconds": 185.2,
        "submission_id": submission_id,
        "dashboard_url": f"{ray.url}/#/jobs/{submission_id}",
    }


def lasting(seconds: float = 0.0, requests: int = 0) -> Callable[[FakeRay, dict[str, Any]], Script]:
    """Return a script like :func:`committing`, but the job runs for `seconds` and `requests` first."""

    def script(ray: FakeRay, body: dict[str, Any]) -> Script:
        done = committing(ray, body)
        done.seconds, done.requests = seconds, requests
        return done

    return script


@contextmanager
def serving(ray: FakeRay) -> Iterator[FakeRay]:
    """Serve `ray` on a free port of the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms until its head is confirmed

        def _handle(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            ray.requests.append((self.command, parts.path))
            ray.headers.append({name.lower(): value for name, value in self.headers.items()})
            if ray.down:
                return self._reply(503, "no backend")
            if ray.token is not None:
                given = self.headers.get("Authorization") or self.headers.get("X-Ray-Authorization")
                if given != f"Bearer {ray.token}":
                    return self._reply(401 if given is None else 403, "Unauthorized")
            code, text = ray.respond(self.command, unquote(parts.path), parse_qs(parts.query), content)
            if (code, text) == NO_ANSWER:
                self.close_connection = True
                return self.connection.close()
            return self._reply(code, text)

        do_GET = do_PUT = do_POST = _handle  # noqa: N815 - the names that http.server calls

        def _reply(self, code: int, text: str) -> None:
            content = text.encode(errors="surrogateescape")  # so that a test can have bytes that are no text
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print nothing of a client that has read enough of an answer."""
            if not isinstance(sys.exc_info()[1], ConnectionError):
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    ray.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield ray
    finally:
        server.shutdown()
        server.server_close()
