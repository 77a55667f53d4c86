# SPDX-License-Identifier: Apache-2.0
"""What a stage of the checks tells while it runs, and what it leaves for the line at their end.

A plugin of pytest (``-p tests.support.progress --stage NAME --results FOLDER``), used by ``.ci/checks``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic  # tests may replace that of the module
from typing import Any

import pytest

INTERVAL = 30.0
"""Seconds between two lines."""
THOROUGH = "thorough"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stage", default="tests", help="the name of these tests in lines of progress")
    parser.addoption("--results", type=Path, help="a folder for the result, STAGE.json")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker(config))
    else:
        config.pluginmanager.register(Progress(config))


def reason_of(test: pytest.Item) -> str | None:
    """Return why a test is none of `make test`; ``None`` if it is."""
    mark = test.get_closest_marker(THOROUGH)
    return str(mark.args[0]) if mark is not None else None


class Worker:
    """Counts in each process of xdist, which alone selects."""

    def __init__(self, config: pytest.Config) -> None:
        self._output: dict[str, Any] = vars(config)["workeroutput"]
        self._output[THOROUGH] = {}

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._output[THOROUGH] = dict(Counter(filter(None, map(reason_of, items))))  # plain, to be sent


class Progress:
    """One line in half a minute instead of a dot a test.

    :ivar left_out: tests of `make test-all` alone, by reason.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._stage = str(config.getoption("--stage"))
        self._began = self._collected = self._told = monotonic()
        self._over = threading.Event()
        self._total = 0
        self._code: int | None = None
        self._ended: set[str] = set()
        self._outcomes = Counter[str]()
        self._failed: dict[str, str] = {}
        self.left_out: dict[str, int] = {}

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.left_out = Counter(filter(None, map(reason_of, items)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left_out = getattr(node, "workeroutput", {}).get(THOROUGH) or self.left_out

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._begin(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._begin(len(ids))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """No letters; what they stand for is counted as ever."""
        if hasattr(report, "wasxfail"):
            return None
        if report.failed:
            return ("failed", "", "FAILED") if report.when == "call" else ("error", "", "ERROR")
        if report.skipped:
            return ("skipped", "", "SKIPPED")
        return ("passed" if report.when == "call" else "", "", "PASSED")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._outcomes["failed"] += report.nodeid not in self._failed
            self._failed.setdefault(report.nodeid, _sentence(report))
            self._say(f"FAILED {report.nodeid}")
        elif report.when == "call" or report.skipped:
            self._outcomes["skipped" if report.skipped else "passed"] += 1
        if report.when == "teardown":
            self._ended.add(report.nodeid)
        if monotonic() - self._told >= INTERVAL:
            self._tell()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """End at once, as processes of xdist do: libraries tell of leaks when an interpreter ends."""
        if self._code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._code)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._over.set()
        self._code = int(exitstatus)
        seconds = monotonic() - self._began
        folder = self._config.getoption("--results")
        if folder is not None:
            found = {
                "stage": self._stage,
                "seconds": round(seconds),
                "code": self._code,
                **{name: self._outcomes[name] for name in ("passed", "failed", "skipped")},
                "failures": self._failed,
                "left_out": self.left_out,
            }
            (folder / f"{self._stage}.json").write_text(json.dumps(found))

    def _begin(self, tests: int) -> None:
        # Where tests run in this process, some look at its threads.
        if not self._total and self._config.getoption("numprocesses", None):
            threading.Thread(target=self._tell_now_and_then, daemon=True).start()
        self._total, self._collected = tests, monotonic()

    def _tell_now_and_then(self) -> None:
        """A fixture may take minutes, in which no test reports."""
        while not self._over.wait(INTERVAL):
            self._tell()

    def _tell(self) -> None:
        now = self._told = monotonic()
        done, failed = len(self._ended), len(self._failed)
        left = (now - self._collected) / max(1, done) * (self._total - done)
        self._say(
            f"{self._stage}: {done:,} of {self._total:,} tests in {clock(now - self._began)}"
            + (f", {failed} failed" if failed else "")
            + (f", about {clock(left)} left" if done else "")
        )

    def _say(self, line: str) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        reporter.ensure_newline()
        reporter.write_line(line, flush=True)


def _sentence(report: pytest.TestReport) -> str:
    """The first line of an error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next(iter(text.strip().splitlines()), "")[:200]


def clock(seconds: float) -> str:
    """Minutes and seconds, as ``4:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
