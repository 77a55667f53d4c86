# SPDX-License-Identifier: Apache-2.0
"""The driver's process ends with the job's result, whatever its other threads still do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import atexit, os, runpy
from airflow_provider_raybatch.job.phases import driver as main

def job(arguments):
    atexit.register(os.abort)  # as where a thread of Ray Data crashes in the interpreter's end
    print("committed")
    return {code}

main.main = job
runpy.run_module("airflow_provider_raybatch.job", run_name="__main__")
"""
FAILS = r"""
from airflow_provider_raybatch.job.phases.driver import main
raise SystemExit(main(["/no/sp\u00e9c\udcff.json"]))
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_log_is_utf_8_whatever_the_locale(encoding: str) -> None:
    """Names of rows, files and tasks have any letters, and a node's locale may have few."""
    done = subprocess.run(
        [sys.executable, "-c", FAILS],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "/no/spéc" in done.stdout.decode()
    assert "UnicodeEncodeError" not in done.stdout.decode()


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_status_is_the_jobs(code: int) -> None:
    command = [sys.executable, "-c", SCRIPT.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (code, "committed\n")
