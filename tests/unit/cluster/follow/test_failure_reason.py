# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import textwrap

import pytest

from airflow_provider_raybatch.cluster.follow.failure_reason import reason_of, shortened
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobStatus
from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.approved import AssertSentences

TRACEBACK = """Job entrypoint command failed with exit code 1, last available logs:
Traceback (most recent call last):
  File "main.py", line 3, in <module>
    1 / 0
ZeroDivisionError: division by zero

"""


def failed(message="", error_type="JOB_ENTRYPOINT_COMMAND_ERROR", code=1):
    return JobInfo("x", JobStatus.FAILED, message=message, error_type=error_type, driver_exit_code=code)


SETUP_FAILED = "RUNTIME_ENV_SETUP_FAILURE"
NOT_STARTED = "JOB_SUPERVISOR_ACTOR_START_FAILURE"


@pytest.mark.parametrize(
    ("info", "failure_class"),
    [
        (failed(TRACEBACK), FailureClass.INTERNAL),
        (failed("killed", code=-9), FailureClass.OUT_OF_MEMORY),
        (failed("killed", "JOB_SUPERVISOR_ACTOR_DIED", None), FailureClass.NODE_LOST),
        (failed("", "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", None), FailureClass.NODE_LOST),
        (failed("", "JOB_SUPERVISOR_ACTOR_START_TIMEOUT", None), FailureClass.STALLED),
        (failed("", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE", None), FailureClass.INTERNAL),
        (failed("pip failed", SETUP_FAILED, None), FailureClass.USER_ERROR),
        (failed("Failed to download runtime_env file package x", SETUP_FAILED), FailureClass.INTERNAL),
        (failed("pip: ConnectTimeoutError: Connection to x timed out", SETUP_FAILED), FailureClass.INTERNAL),
        (failed("Temporary failure in name resolution", SETUP_FAILED), FailureClass.INTERNAL),
        (failed("", "JOB_ENTRYPOINT_COMMAND_START_ERROR", None), FailureClass.USER_ERROR),
        (failed("", NOT_STARTED, None), FailureClass.INTERNAL),
        (failed("Failed to start: 'env_vars'\nTypeError: no", NOT_STARTED), FailureClass.USER_ERROR),
        (failed("", "SOMETHING_NEW", None), FailureClass.INTERNAL),
        (failed("", None, None), FailureClass.INTERNAL),
    ],
)
def test_rays_error_types_become_classes(info, failure_class):
    assert reason_of(info).failure_class is failure_class


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
    found = reason_of(failed(SETUP + lines, SETUP_FAILED, None))
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
    found = reason_of(failed(SETUP + lines, SETUP_FAILED, None))
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
        ("ValueError: " + "x" * 9000, (), "ValueError: " + "x" * 585 + "..."),
    ],
)
def test_most_specific_line_is_the_reason(message, tail, line):
    assert shortened(message, tail) == line


NO_FILE = "/opt/python: can't open file '/tmp/ray/train.py': [Errno 2] No such file or directory"
KILLED = "The driver was killed (exit code 137), most often because its node ran out of memory"
NO_PYTHON = "The job's command found no Python that has Ray; on the cluster's head, put the folder"


def test_end_of_a_command_is_one_sentence(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda message, code: reason_of(failed(message, code=code)).message)
