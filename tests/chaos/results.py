# SPDX-License-Identifier: Apache-2.0
"""The results file: a line of JSON per run or stop, appended over any number of harness runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .result import Result
from .stopping import Stop
from .version import DIRTY


def append_line(file: Path, line: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return all lines; a repeated run does not hide an earlier one."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append(file: Path, one: Result | Stop) -> None:
    what = "run" if isinstance(one, Result) else "stop"
    append_line(file, {"what": what, **asdict(one), "flaws": one.flaws})


def read(file: Path) -> tuple[list[Result], list[dict[str, Any]]]:
    """Return all runs and all stops, including runs without a kill and repeated seeds."""
    lines = read_lines(file)
    names = {field.name for field in fields(Result)}
    runs = [
        Result(**{name: line[name] for name in names if name in line})
        for line in lines
        if line["what"] == "run"
    ]
    return runs, [line for line in lines if line["what"] == "stop"]


def of_one_version(runs: Sequence[Result], stops: Sequence[dict[str, Any]]) -> str:
    """Return the version of all lines.

    :raises ValueError: the lines are from several versions, or from uncommitted code.
    """
    found = {*(one.version for one in runs), *(one["version"] for one in stops)}
    if len(found) != 1:
        raise ValueError(f"results: the lines are from {sorted(found)}; make a table of one version.")
    (version,) = found
    if version.endswith(DIRTY):
        raise ValueError(f"results: {version} had changes that are not committed; commit, and run again.")
    return version


def summary(runs: Sequence[Result], stops: Sequence[dict[str, Any]]) -> str:
    """Return the last line of the harness."""
    names = ("lost", "duplicated", "wrong", "overdue", "unexplained", "late")
    counts = " ".join(f"{name}={sum(getattr(one, name) for one in runs)}" for name in names)
    flawed = sum(bool(one.flaws) for one in runs)
    stop = f" stop_max_s={max(float(one['stop_s']) for one in stops):.1f}" if stops else ""
    missed = sum(bool(one.missed) for one in runs)
    return f"chaos: runs={len(runs)} missed={missed} flawed={flawed} {counts}{stop}"
