# SPDX-License-Identifier: Apache-2.0
"""A Ray head on this machine that lives as long as the process that started it, and no longer.

The host ``local`` stands for one that lives as long as one task.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError, EmbeddedClusterError
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.cluster.local import reaper
from airflow_provider_raybatch.contract.failures import FailureClass

_REAPER_LOG = "reaper.log"
_GIB = 2**30
_SMALL_HOST = 32 * _GIB
_LOG_LINES = 20
_LOOK_SECONDS = 0.25
_END_SECONDS = 20.0
# A Unix socket's path has at most 107 bytes (unix(7)); Ray's session takes about 75 of them.
_LONGEST_TEMP = 20
# Settings that would make the new Ray look for another one, or take another's token.
_FOREIGN = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_AUTH_TOKEN_PATH")
# How long Ray waits for its own processes: 30 and 60 s by default, too short for a busy host.
_STARTUP_TIMEOUTS = ("RAY_DASHBOARD_STARTUP_TIMEOUT_S", "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT")
_AWS_TOKENS = ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")  # botocore reads both
# Below Ray's fixed timeouts (`ray start` waits 30 s for a raylet). A start that fails sooner did not time
# out, so it would fail again.
_QUICK_FAILURE_SECONDS = 20.0

_open_pipes: set[int] = set()


def _close_inherited_pipes() -> None:
    for pipe in _open_pipes:
        os.close(pipe)
    _open_pipes.clear()


# A forked child that outlives its parent must not keep the parent's Ray alive.
os.register_at_fork(after_in_child=_close_inherited_pipes)


class RayHead:
    """A context manager around one single-node Ray with its dashboard on the loopback interface.

    :param env: added to the environment that Ray and its jobs inherit.
    :param python: the interpreter whose Ray is started.
    :param num_cpus: by default Ray counts them.
    :param with_token: whether the cluster demands a random token; without, whoever reaches a port runs code.
    :param dashboard_port: by default a free one.
    :param startup_timeout: seconds until the cluster must take jobs.
    :param held_files: file descriptors (locks) that stay open until Ray's last process is gone.
    """

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        *,
        python: str = sys.executable,
        num_cpus: int | None = None,
        with_token: bool = True,
        dashboard_port: int | None = None,
        startup_timeout: float = 120.0,
        held_files: Sequence[int] = (),
    ) -> None:
        self._env = dict(env or {})
        self._python = python
        self._num_cpus = num_cpus
        self._token = secrets.token_hex(32) if with_token else None
        self._dashboard_port = dashboard_port
        self._startup_timeout = startup_timeout
        self._held_files = tuple(held_files)
        self._exit = ExitStack()

    def __enter__(self) -> ClusterAddress:
        """Start, and hand back the address once jobs can be submitted.

        :raises EmbeddedClusterError: Ray ended, or took no jobs in time; the message ends with its log.
        """
        try:
            return self._start()
        except BaseException:
            self._exit.close()
            raise

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def _start(self) -> ClusterAddress:
        started = time.monotonic()
        deadline = started + self._startup_timeout
        try:
            return self._try_to_start(deadline)
        except EmbeddedClusterError:
            if not started + _QUICK_FAILURE_SECONDS < time.monotonic() < deadline:
                raise
        # A timeout on a busy host. Ray's files are in the page cache now, so the second start is faster.
        self._exit.close()
        return self._try_to_start(deadline)

    def _try_to_start(self, deadline: float) -> ClusterAddress:
        temp = tempfile.gettempdir()
        home = Path(tempfile.mkdtemp(prefix="rb-", dir=temp if len(temp) <= _LONGEST_TEMP else "/tmp"))
        self._exit.callback(shutil.rmtree, home, ignore_errors=True)
        port, client_port = _free_ports(2)
        port = self._dashboard_port or port
        guard = self._start_reaper(home, self._command(home, port, client_port))
        address = ClusterAddress(f"http://127.0.0.1:{port}", token=self._token, connect_timeout=5.0)
        run_blocking(self._wait(address, home, guard, deadline))
        return address

    def _start_reaper(self, home: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
        read_end, write_end = os.pipe()
        _open_pipes.add(write_end)
        given = ["--pipe", str(read_end), "--home", str(home)]
        try:
            with (home / _REAPER_LOG).open("wb") as log:
                guard = subprocess.Popen(
                    # -P: modules must not be imported from the reaper's folder.
                    [sys.executable, "-P", reaper.__file__, *given, "--", *command],
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(read_end, *self._held_files),
                    start_new_session=True,
                )
        except BaseException:
            _close_pipe(write_end)
            raise
        finally:
            os.close(read_end)
        self._exit.callback(_wait_for_end, guard)
        self._exit.callback(_close_pipe, write_end)
        return guard

    def _command(self, home: Path, dashboard_port: int, client_port: int) -> list[str]:
        options = {
            "port": 0,
            "node-ip-address": "127.0.0.1",
            "include-dashboard": "true",
            "dashboard-host": "127.0.0.1",
            "dashboard-port": dashboard_port,
            "dashboard-agent-listen-port": 0,
            "dashboard-agent-grpc-port": 0,
            "runtime-env-agent-port": 0,
            "metrics-export-port": 0,
            "ray-client-server-port": client_port,
            # It would send what workers write to drivers, which are not asked for it.
            "include-log-monitor": "false",
            # 0 is "any"; Ray's own choice is 10002 to 19999 for every cluster of the host.
            "min-worker-port": 0,
            "max-worker-port": 0,
            "temp-dir": home,
            "num-cpus": self._num_cpus,
            "object-store-memory": _object_store_bytes(_memory_bytes()),
            "log-style": "record",
        }
        # No --block: that takes 200 MiB to end all when any part ends, even the server of the Ray client,
        # which is not used here and which gives up after 30 s on a busy host.
        start = ["-m", "ray.scripts.scripts", "start", "--head", "--disable-usage-stats"]
        given = [f"--{name}={value}" for name, value in options.items() if value is not None]
        return [self._python, *start, *given]

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        environment.update(dict.fromkeys(_STARTUP_TIMEOUTS, str(int(self._startup_timeout))))
        if "AWS_ACCESS_KEY_ID" in self._env:
            # S3 refuses a key together with another key's token.
            for name in _AWS_TOKENS:
                environment.pop(name, None)
        environment.update(self._env)
        # A job's entrypoint says just `python`, which must be the one that has this Ray.
        folders = [str(Path(self._python).parent), environment.get("PATH", os.defpath)]
        environment["PATH"] = os.pathsep.join(folders)
        environment["RAY_USAGE_STATS_ENABLED"] = "0"
        environment["RAY_AUTH_MODE"] = "token" if self._token else "disabled"
        environment["RAY_AUTH_TOKEN"] = self._token or ""
        return environment

    async def _wait(
        self, address: ClusterAddress, home: Path, guard: subprocess.Popen[bytes], deadline: float
    ) -> None:
        async with RayJobsClient(address, retries=RetryPolicy(attempts=1)) as client:
            while True:
                code = _exit_code(home)
                if code not in {None, 0} or guard.poll() is not None:
                    raise EmbeddedClusterError(f"The private Ray ended while it started. {_last_words(home)}")
                # Before it ends, `ray start` may still give up and take down what it started.
                if code == 0 and await _is_ready(client, home):
                    return
                if time.monotonic() >= deadline:
                    raise EmbeddedClusterError(
                        f"The private Ray took no jobs within {self._startup_timeout:.0f} s. "
                        + _last_words(home)
                    )
                await asyncio.sleep(_LOOK_SECONDS)


def _exit_code(home: Path) -> int | None:
    """Of ``ray start``; ``None`` while it works."""
    with suppress(OSError, ValueError):
        return int((home / reaper.EXIT_CODE_FILE).read_text())
    return None


async def _is_ready(client: RayJobsClient, home: Path) -> bool:
    try:
        session = (await client.version()).session_name
        # Another Ray may have taken the port first.
        return session is not None and (home / session).is_dir() and await client.takes_jobs()
    except ClusterError:
        return False


def _free_ports(count: int) -> list[int]:
    """Ports that are free now; held together, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _memory_bytes() -> int:
    """What this process may use: the host's memory, or less where a control group bounds it."""
    bounds = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # not there, or "max"
            bounds.append(int(Path(file).read_text().strip()))
    return min(bounds)


def _object_store_bytes(memory: int) -> int | None:
    """15 % of a small host, at most 2 GiB, since engines on CPUs need it more; elsewhere Ray's own choice."""
    return min(2 * _GIB, memory * 15 // 100) if memory < _SMALL_HOST else None


def _last_words(home: Path) -> str:
    for name in (reaper.LOG_FILE, _REAPER_LOG):
        with suppress(OSError):
            lines = (home / name).read_text(errors="replace").splitlines()
            if lines:
                return "Its log ends: " + "\n".join(lines[-_LOG_LINES:])
    return "It left no log."


def _close_pipe(pipe: int) -> None:
    # In a forked child it is closed and forgotten already.
    if pipe in _open_pipes:
        _open_pipes.remove(pipe)
        os.close(pipe)


def _wait_for_end(guard: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):  # it goes on by itself, and holds the lock until it is through
        guard.wait(_END_SECONDS)


@contextmanager
def embedded_cluster(
    log: Callable[[str], None],
    env: Mapping[str, str] | None = None,
    *,
    startup_timeout: float = 120.0,
    num_cpus: int | None = None,
) -> Iterator[ClusterAddress]:
    """Ray runs inside this context, with a token of its own; see :class:`RayHead`.

    One per host and user at a time; others wait for their turn, as long as it takes.

    :param log: gets lines for people.
    :raises EmbeddedClusterError: Ray is not installed, or didn't start in time.
    """
    if sys.platform != "linux":
        raise EmbeddedClusterError(
            "The connection's host is 'local', and a private Ray needs Linux; name the Ray dashboard's host.",
            FailureClass.USER_ERROR,
        )
    if importlib.util.find_spec("ray") is None:
        raise EmbeddedClusterError(
            "The connection's host is 'local', and Ray for a private one is not installed: install "
            "airflow-provider-raybatch[embedded-cpu] (or [embedded-gpu]), or name the dashboard's host.",
            FailureClass.USER_ERROR,
        )
    with _turn(log) as lock:
        head = RayHead(env, num_cpus=num_cpus, startup_timeout=startup_timeout, held_files=[lock])
        log("Starting a private Ray for this task.")
        started = time.monotonic()
        with head as address:
            log(f"The private Ray took {time.monotonic() - started:.1f} s to start; it ends with this task.")
            yield address


@contextmanager
def _turn(log: Callable[[str], None]) -> Iterator[int]:
    # The lock belongs to the open file, not to a process. The reaper holds it too, so that after a
    # SIGKILL the next task waits until the previous Ray has freed its memory.
    path = Path(tempfile.gettempdir()) / f"airflow-provider-raybatch-{os.getuid()}.lock"
    try:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise EmbeddedClusterError(
            f"The lock file {path} of the private Ray can't be opened ({error.strerror}); remove it."
        ) from error
    try:
        if os.fstat(lock).st_uid != os.getuid():
            raise EmbeddedClusterError(
                f"The lock file {path} of the private Ray belongs to another user, who could hold it for "
                "ever; remove it, or set TMPDIR to a folder of your own."
            )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("Another task of this host runs its private Ray; waiting for it to end.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)
