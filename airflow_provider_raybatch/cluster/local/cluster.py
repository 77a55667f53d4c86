# SPDX-License-Identifier: Apache-2.0
"""What the host ``local`` stands for: a private single-node Ray for the length of one task."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.errors import EmbeddedClusterError
from airflow_provider_raybatch.cluster.local.head import RayHead
from airflow_provider_raybatch.contract.failures import FailureClass


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
