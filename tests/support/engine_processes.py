# SPDX-License-Identifier: Apache-2.0
"""An engine's processes as children of the tests' own process, which has other tests after it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import context, forkserver, process
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def own_processes() -> Iterator[Path]:
    """A folder for files of an engine that this process starts; afterwards it can start another one.

    The engine must have ended by then: its fork server waits for it. A Ray must have started before: its
    sockets would go with the folder.
    """
    from airflow_provider_raybatch.job.engine import vllm_compat
    from airflow_provider_raybatch.job.engine_process import fork_server

    rays = _ray_runs()
    own: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    contexts, folder = dict(context._concrete_contexts), own.get("tempdir")  # type: ignore[attr-defined]
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as scratch,  # a short name, for sockets
    ):
        patch.setattr(tempfile, "tempdir", scratch)
        patch.setenv("TMPDIR", scratch)
        patch.setenv("VLLM_RPC_BASE_PATH", "")  # so that it is afterwards what it was
        del os.environ["VLLM_RPC_BASE_PATH"]
        vllm_compat.keep_files_in(fork_server.folder_of_sockets())
        try:
            yield Path(scratch)
            assert _ray_runs() == rays, "start Ray first: its sockets are in a folder that goes now"
        finally:
            forkserver._forkserver._stop()  # type: ignore[attr-defined]
            context._concrete_contexts.update(contexts)  # type: ignore[attr-defined]
            own["tempdir"] = folder
            fork_server.folder_of_sockets.cache_clear()


def _ray_runs() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()
