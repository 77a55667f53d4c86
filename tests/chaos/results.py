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
from .version import Version
from .vllm_run import VllmRun


def append(file: Path, line: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def append_run(file: Path, result: Result) -> None:
    append(file, {"what": "run", **asdict(result), "flaws": result.flaws})


def append_stop(file: Path, stop: Stop) -> None:
    append(file, {"what": "stop", **asdict(stop), "flaws": stop.flaws})


def append_vllm(file: Path, run: VllmRun) -> None:
    append(file, {"what": "vllm", **asdict(run), "flaws": run.flaws})


def read_vllm(file: Path) -> list[dict[str, Any]]:
    """Return the runs with a real vLLM."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in lines if line["what"] == "vllm"]


def read(file: Path) -> tuple[list[Result], list[dict[str, Any]]]:
    """Return all runs and all stops, including runs without a kill and repeated seeds."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    names = {field.name for field in fields(Result)}
    runs = [
        Result(**{name: line[name] for name in names if name in line})
        for line in lines
        if line["what"] == "run"
    ]
    return runs, [line for line in lines if line["what"] == "stop"]


def of_one_version(runs: Sequence[Result], stops: Sequence[dict[str, Any]]) -> Version:
    """Return the version of all lines, with the commit of the last one.

    :raises ValueError: the lines are from several versions of the package, or from uncommitted code.
    """
    versions = [
        Version(**version) for version in (*(one.version for one in runs), *(one["version"] for one in stops))
    ]
    packages = {version.package: version.commit for version in versions}
    if len(packages) != 1:
        raise ValueError(
            f"results: the lines are from {len(packages)} versions of the package "
            f"({', '.join(packages.values())}); make a table of one version."
        )
    if versions[-1].package.endswith("-dirty"):
        raise ValueError(
            f"results: {versions[-1].commit} had changes that are not committed; commit, and run again."
        )
    return versions[-1]


def summary(runs: Sequence[Result], stops: Sequence[dict[str, Any]]) -> str:
    """Return the last line of the harness."""

    def total(name: str) -> int:
        return sum(getattr(one, name) for one in runs)

    names = ("lost", "duplicated", "wrong", "overdue", "unexplained", "late")
    counts = " ".join(f"{name}={total(name)}" for name in names)
    flawed = sum(bool(one.flaws) for one in runs)
    stop = f" stop_max_s={max(float(one['stop_s']) for one in stops):.1f}" if stops else ""
    missed = sum(bool(one.missed) for one in runs)
    return f"chaos: runs={len(runs)} missed={missed} flawed={flawed} {counts}{stop}"
