# SPDX-License-Identifier: Apache-2.0
"""A whole Airflow on this machine: all its processes around a PostgreSQL of its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
from cryptography.fernet import Fernet

from .ports import free_ports
from .postgres import postgres
from .rest import AirflowApi
from .waiting import tail, wait_for

# Airflow's defaults suit clusters; with these, changes are noticed in seconds instead of minutes.
INTERVALS = {
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
    # A DAG that was read again reaches the scheduler within half a minute, too.
    "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
    # No file changes; where its DAG does, `show_dags` starts the processor anew.
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
    "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
    # Tasks that a killed scheduler had queued are queued again once its heartbeat is 30 s old.
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
    # Airflow notices after this time that a worker died with its supervisor.
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "25",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    # A running task learns after this time that it was marked or cleared.
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    "WORKERS__MAX_FAILED_HEARTBEATS": "20",  # because heartbeats come more often
    "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    # A triggerer takes over the triggers of a dead one after this time.
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "12",
}

USERS = {"admin": "admin", "viewer": "viewer", "guest": "viewer", "ann": "user", "bob": "op"}
"""Users and their roles; ``guest`` sees no DAG."""

_COMPONENTS = {
    "api-server": ["api-server", "--host", "127.0.0.1", "--workers", "1"],
    "dag-processor": ["dag-processor"],
    "scheduler": ["scheduler"],
    "triggerer": ["triggerer"],
}
_AUTH = Path(__file__).parent / "auth"
_START_TIMEOUT = 120.0
_STOP_TIMEOUT = 15.0


class AirflowStack:
    """A context manager.

    :param bundles: folders of DAG files by name.
    :param expected: ids of the DAGs that must be there before the stack counts as started.
    :param settings: Airflow's settings, by default those above for quick reactions.
    """

    def __init__(
        self, bundles: Mapping[str, Path], expected: Sequence[str], settings: Mapping[str, str] = INTERVALS
    ) -> None:
        self._settings = dict(settings)
        self._bundles = dict(bundles)
        self._expected = list(expected)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._orphans: list[psutil.Process] = []
        self._shown: dict[str, str] = {}
        self._exit = ExitStack()

    def __enter__(self) -> AirflowStack:
        try:
            self._start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def show_dags(self, env: Mapping[str, str], read: str | None = None) -> None:
        """Set environment variables for DAG files, and restart the components that read and run them.

        :param read: a DAG to wait for whose tasks depend on the variables; until it is read again, the
            scheduler has its old tasks.
        """
        if env == self._shown:
            return
        self._shown = dict(env)
        self.stop("dag-processor", "scheduler")
        stopped = datetime.now(UTC)
        self.restart("dag-processor", "scheduler")
        if read is not None:
            wait_for(f"{read} to be read", lambda: self.api.read_at(read) > stopped, 60, self.evidence)

    def restart(self, *names: str) -> None:
        """End and start components."""
        self.stop(*names)
        for name in names:
            self.start(name)
        self.wait_until_healthy()

    def start(self, name: str, beside: str | None = None, **settings: str) -> None:
        """Start one component; it has a process group and a log file of its own.

        :param beside: name of a second component of this kind.
        :param settings: of Airflow, for this process alone.
        """
        command = [sys.executable, "-m", "airflow", *_COMPONENTS[name]]
        own = {f"AIRFLOW__{setting}": value for setting, value in settings.items()}
        environment = {**self.environment, **self._shown, **own}
        if beside is not None:
            ports = {"WORKER_LOG_SERVER_PORT", "TRIGGER_LOG_SERVER_PORT"}
            for port, free in zip(ports, free_ports(len(ports)), strict=True):
                environment[f"AIRFLOW__LOGGING__{port}"] = str(free)
        with self.log_of(beside or name).open("ab") as log:
            self._processes[beside or name] = subprocess.Popen(
                command,
                env=environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, *names: str) -> None:
        """End components and everything they started: SIGINT, then SIGKILL to the rest."""
        processes = [self._processes.pop(name) for name in names if name in self._processes]
        family: list[psutil.Process] = []
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                family += psutil.Process(process.pid).children(recursive=True)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT)
            process.kill()
            process.wait()
        _kill(family)

    def kill(self, name: str, *, with_family: bool) -> None:
        """SIGKILL a component.

        :param with_family: also kill all that it started, as when a container dies; otherwise its children
            live on, as when the kernel kills the process with most memory.
        """
        process = self._processes.pop(name)
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        if with_family:
            _kill(family)
        else:
            self._orphans += family

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Suspend a component with all it started."""
        process = psutil.Process(self.pid(name))
        family = [process, *process.children(recursive=True)]
        try:
            for one in family:
                one.suspend()
            yield
        finally:
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.resume()

    def wait_until_healthy(self) -> None:
        """Wait until every started component reports that it is healthy."""
        wait_for("a healthy Airflow", self._is_healthy, _START_TIMEOUT, self.evidence)

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def log_of(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def evidence(self) -> str:
        return "\n".join(tail(self.log_of(name)) for name in _COMPONENTS)

    def _start(self) -> None:
        # Ray's sockets are below TMPDIR, and a socket's path is at most 107 bytes long.
        self.home = Path(tempfile.mkdtemp(prefix="af-", dir="/tmp"))
        self._exit.callback(shutil.rmtree, self.home, ignore_errors=True)
        self.temp = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
        self._exit.callback(shutil.rmtree, self.temp, ignore_errors=True)
        self.port, *log_ports = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self.passwords = {name: secrets.token_urlsafe(16) for name in USERS}
        passwords = self.home / "passwords.json"
        passwords.write_text(json.dumps(self.passwords))
        self.database = self._exit.enter_context(postgres())
        self.environment = self._environment(passwords, log_ports)
        self._migrate()
        self._exit.callback(_kill, self._orphans)
        self._exit.callback(lambda: self.stop(*self._processes))
        for name in _COMPONENTS:
            self.start(name)
        self.wait_until_healthy()
        self.api = AirflowApi(self.url, "admin", self.passwords["admin"], self.evidence)
        self._exit.callback(self.api.close)
        self._wait_for_dags()

    def _environment(self, passwords: Path, log_ports: Sequence[int]) -> dict[str, str]:
        bundle = "airflow.dag_processing.bundles.local.LocalDagBundle"
        settings = {
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "4",
            "CORE__LOAD_EXAMPLES": "False",
            # The API server builds its execution API at the first call, which takes half a minute on a busy
            # machine. After five seconds a task would give up, and its retry waits for five minutes.
            "WORKERS__EXECUTION_API_TIMEOUT": "120",
            "CORE__TEST_CONNECTION": "Enabled",
            "CORE__FERNET_KEY": Fernet.generate_key().decode(),
            "CORE__AUTH_MANAGER": "access_by_dag.AccessByDag",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "API__BASE_URL": self.url,
            "API__PORT": str(self.port),
            "API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
            "DATABASE__SQL_ALCHEMY_CONN": self.database,
            "LOGGING__WORKER_LOG_SERVER_PORT": str(log_ports[0]),
            "LOGGING__TRIGGER_LOG_SERVER_PORT": str(log_ports[1]),
            "LOGGING__COLORED_CONSOLE_LOG": "False",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
            "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([
                {"name": name, "classpath": bundle, "kwargs": {"path": str(path), "refresh_interval": 3600}}
                for name, path in self._bundles.items()
            ]),
            **self._settings,
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        return {
            **inherited,
            "AIRFLOW_HOME": str(self.home),
            "TMPDIR": str(self.temp),
            "PYTHONPATH": os.pathsep.join(filter(None, (inherited.get("PYTHONPATH"), str(_AUTH)))),
            "PYTHONUNBUFFERED": "1",
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        }

    def _migrate(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _is_healthy(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, (
                f"{name} ended with {process.returncode}\n{tail(self.log_of(name))}"
            )
        try:
            answer = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5)
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and all(
            part["status"] == "healthy" for part in answer.json().values() if part is not None
        )

    def _wait_for_dags(self) -> None:
        def dags_are_there() -> bool:
            errors = self.api.call("GET", "importErrors")["import_errors"]
            assert not errors, errors
            listed = self.api.call("GET", "dags", params={"limit": 100})["dags"]
            return set(self._expected) <= {dag["dag_id"] for dag in listed}

        wait_for("the DAGs", dags_are_there, _START_TIMEOUT, self.evidence)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
