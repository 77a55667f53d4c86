# SPDX-License-Identifier: Apache-2.0
"""Decides whether a mutant survives: runs pytest in its own process, up to the first failure."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .mutant import TESTS, Mutant
from .scratch import Scratch

Verdict = Literal["killed", "hangs", "equivalent", "survived", "not equivalent", "unclear"]
GOOD = ("killed", "hangs", "equivalent")
_TEST_SECONDS = 120
_ALL_SECONDS = 600
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_TIMED_OUT = "Timeout (>"


@dataclass(frozen=True)
class Result:
    """The result of a mutant.

    :param killer: the test that failed first.
    :param seconds: duration of the tests.
    :param output: pytest's output, unless the verdict is one of `GOOD`.
    """

    mutant: Mutant
    verdict: Verdict
    killer: str = ""
    seconds: float = 0.0
    output: str = ""


def judge(scratch: Scratch, mutant: Mutant) -> Result:
    """Run the mutant's tests on it."""
    try:
        with scratch.mutated(mutant):
            began = time.monotonic()
            code, output = _pytest(scratch, mutant.tests, _ALL_SECONDS)
            seconds = time.monotonic() - began
    except ValueError as error:
        return Result(mutant, "unclear", output=str(error))
    failed = _FAILED.search(output)
    killer = failed.group(1) if failed else ""
    verdict: Verdict
    if code is None or (code == 1 and _TIMED_OUT in output):
        verdict = "hangs"
    elif code == 1:
        verdict = "not equivalent" if mutant.equivalent else "killed"
    elif code == 0:
        verdict = "equivalent" if mutant.equivalent else "survived"
    else:
        verdict = "unclear"  # nothing ran: pytest found no such test, or could not import one
    return Result(mutant, verdict, killer, seconds, "" if verdict in GOOD else output)


def passes(scratch: Scratch, mutants: Iterable[Mutant]) -> str | None:
    """Run the tests of all `mutants` on the unchanged code; return pytest's output if one fails."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    code, output = _pytest(scratch, tests, 3 * _ALL_SECONDS)
    return None if code == 0 else output


def _pytest(scratch: Scratch, tests: Iterable[str], seconds: float) -> tuple[int | None, str]:
    """Run pytest; return its exit code, ``None`` after the time limit, and its output."""
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={_TEST_SECONDS}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *(str(TESTS / test) for test in tests)],
        cwd=scratch.root,
        env=scratch.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output
    return process.returncode, output
