# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import textwrap

import pytest

from airflow_provider_raybatch.cluster.follow.failure_reason import reason_of, shortened
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobStatus
from airflow_provider_raybatch.contract.failures import FailureClass

TRACEBACK = """Job entrypoint command failed with exit code 1, last available logs:
Traceback (most recent call last):
  File "main.py", line 3, in <module>
    1 / 0
ZeroDivisionError: division by zero

"""


def failed(message="", error_type="JOB_ENTRYPOINT_COMMAND_ERROR", code=1):
    return JobInfo("x", JobStatus.FAILED, message=message, error_type=error_type, driver_exit_code=code)


@pytest.mark.parametrize(
    ("info", "failure_class", "retryable"),
    [
        (failed(TRACEBACK), FailureClass.INTERNAL, True),
        (failed("killed", code=-9), FailureClass.OUT_OF_MEMORY, True),
        (failed("killed", code=137), FailureClass.OUT_OF_MEMORY, True),
        (failed("killed", "JOB_SUPERVISOR_ACTOR_DIED", None), FailureClass.NODE_LOST, True),
        (failed("", "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", None), FailureClass.NODE_LOST, True),
        (failed("", "JOB_SUPERVISOR_ACTOR_START_TIMEOUT", None), FailureClass.STALLED, True),
        (failed("", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE", None), FailureClass.INTERNAL, True),
        (failed("pip failed", "RUNTIME_ENV_SETUP_FAILURE", None), FailureClass.USER_ERROR, False),
        (failed("", "JOB_ENTRYPOINT_COMMAND_START_ERROR", None), FailureClass.USER_ERROR, False),
        (failed("", "JOB_SUPERVISOR_ACTOR_START_FAILURE", None), FailureClass.INTERNAL, True),
        (
            failed("Failed to start: 'env_vars'\nTypeError: no", "JOB_SUPERVISOR_ACTOR_START_FAILURE", None),
            FailureClass.USER_ERROR,
            False,
        ),
        (failed("", "SOMETHING_NEW", None), FailureClass.INTERNAL, True),
        (failed("", None, None), FailureClass.INTERNAL, True),
    ],
)
def test_rays_error_types_become_classes(info, failure_class, retryable):
    found = reason_of(info)
    assert found.failure_class is failure_class
    assert found.failure_class.retryable is retryable


@pytest.mark.parametrize(
    "message",
    [
        "Failed to download runtime_env file package gcs://x from the GCS to the Ray worker node.",
        "pip: ConnectTimeoutError: Connection to the index timed out",
        "Temporary failure in name resolution",
    ],
)
def test_a_passing_failure_of_the_runtime_env_may_be_retried(message):
    assert reason_of(failed(message, "RUNTIME_ENV_SETUP_FAILURE", None)).failure_class.retryable


SETUP = """runtime_env setup failed: Failed to set up runtime environment.
Could not create the actor because its associated runtime env failed to be created.
Traceback (most recent call last):
  File "/x/ray/_private/runtime_env/agent/runtime_env_agent.py", line 375, in _create_runtime_env_with_retry
    runtime_env_context = await asyncio.wait_for(
ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[9] failed with the following details.
Command '['/tmp/ray/virtualenv/bin/python', '-m', 'pip', 'install', '-r', 'requirements.txt']' returned \
non-zero exit status 1.
Last 50 lines of stdout:
"""


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (
            """
            Looking in indexes: https://index.example/simple
            WARNING: Location 'file:///x' is ignored: it is neither a file nor a directory.
            ERROR: Could not find a version that satisfies the requirement no-such-zz9 (from versions: none)
            ERROR: No matching distribution found for no-such-zz9

            [notice] A new release of pip is available: 25.0 -> 26.1
            [notice] To update, run: pip install --upgrade pip
            """,
            "ERROR: No matching distribution found for no-such-zz9",
        ),
        (
            """
            ERROR: Cannot install six==1.15 and six==1.16 because these versions have conflicts.

            The conflict is caused by:
                The user requested six==1.15
                The user requested six==1.16

            ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/en/latest/topics
            """,
            "ERROR: Cannot install six==1.15 and six==1.16 because these versions have conflicts; correct",
        ),
        (
            """
            error: subprocess-exited-with-error
            x Getting requirements to build wheel did not run successfully.
              OSError: mysql_config not found
              [end of output]
            note: This error originates from a subprocess, and is likely not a problem with pip.
            """,
            "OSError: mysql_config not found",
        ),
        (
            """
            vllm 0.32 has requirement torch==2.9, but you have torch 2.8.
            WARNING: There was an error checking the latest version of pip.
            note: This is an issue with the package mentioned above.
            hint: See above for details.
            [notice] To update, run: pip install --upgrade pip
            """,
            "vllm 0.32 has requirement torch==2.9, but you have torch 2.8; correct",
        ),
        (
            """
              x No solution found when resolving dependencies:
              ╰─▶ Because no-such-zz9 was not found in the registry and you require no-such-zz9, we can
                  conclude that your requirements are unsatisfiable.
            """,
            "require no-such-zz9, we can conclude that your requirements are unsatisfiable; correct pip",
        ),
    ],
    ids=["missing", "conflict", "build", "check", "uv"],
)
def test_failed_installation_is_told_by_the_installer(output, told):
    lines = textwrap.indent(textwrap.dedent(output).strip(), "    ")
    found = reason_of(failed(SETUP + lines, "RUNTIME_ENV_SETUP_FAILURE", None))
    assert told in found.message
    assert found.message.startswith("runtime_env: the cluster can't install its packages: ")
    assert found.message.endswith("correct pip, uv or conda in runtime_env.")
    assert "SubprocessCalledProcessError" not in found.message
    assert found.failure_class is FailureClass.USER_ERROR


def test_an_installation_that_a_network_broke_is_retried():
    """pip says at its end that there is no such package."""
    lines = """\
    WARNING: Retrying after connection broken by 'NewConnectionError': Failed to establish a new connection
    ERROR: No matching distribution found for six
"""
    found = reason_of(failed(SETUP + lines, "RUNTIME_ENV_SETUP_FAILURE", None))
    assert found.failure_class.retryable
    assert "found for six; a retry installs them anew; if it fails, too, correct pip" in found.message


@pytest.mark.parametrize(
    ("message", "tail", "line"),
    [
        (TRACEBACK, (), "ZeroDivisionError: division by zero"),
        ("no exception\nlast words\n", (), "last words"),
        ("short", ["x", "my.module.OddError: from the log", "bye"], "my.module.OddError: from the log"),
        ("", (), "no message"),
        ("ValueError without a colon", (), "ValueError without a colon"),
    ],
)
def test_most_specific_line_is_the_reason(message, tail, line):
    assert shortened(message, tail) == line


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Traceback (most recent call last):\nModuleNotFoundError: No module named 'ray'\n", 1),
        ("Job entrypoint command failed with exit code 127\n/bin/sh: 1: python: not found\n", 127),
        ("bash: line 1: python3: command not found", 127),
    ],
)
def test_python_without_ray_is_an_error_with_its_remedy(message, code):
    found = reason_of(failed(message, code=code))
    assert found.failure_class is FailureClass.USER_ERROR
    assert "put the folder of the Python that runs Ray first into PATH" in found.message


def test_long_lines_are_cut():
    assert len(shortened("ValueError: " + "x" * 9000)) == 600


def test_exit_code_is_reported():
    assert reason_of(failed(TRACEBACK, code=3)).message == (
        "The job failed (exit code 3): ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ("Killed", "memory."),
        ("Job entrypoint command failed with exit code 137, last available logs:", "memory."),
        ("", "memory."),
        ("step 3 of 9.", "memory; its last line: step 3 of 9."),
    ],
)
def test_a_killed_driver_is_told_by_a_line_that_says_more(last, told):
    assert reason_of(failed(last, code=137)).message == (
        f"The driver was killed (exit code 137), most often because its node ran out of {told}"
    )


def test_missing_script_error_names_the_working_dir():
    message = (
        "Job entrypoint command failed with exit code 2, last available logs:\n"
        "/opt/python/bin/python: can't open file '/tmp/ray/train.py': [Errno 2] No such file or directory\n"
    )
    found = reason_of(failed(message, code=2))
    assert found.failure_class is FailureClass.USER_ERROR
    assert found.message == (
        "The cluster has no file '/tmp/ray/train.py', which the job's command runs; send the folder that has "
        "it with runtime_env={'working_dir': ...}, or name a path that the cluster's head can read."
    )
