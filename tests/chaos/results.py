# SPDX-License-Identifier: Apache-2.0
"""The results file: a line of JSON per run or stop, appended over any number of harness runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .runs import Result
from .stopping import Stop


def append(file: Path, line: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def append_run(file: Path, result: Result) -> None:
    append(file, {"what": "run", **asdict(result)})


def append_stop(file: Path, stop: Stop) -> None:
    append(file, {"what": "stop", **asdict(stop)})


def read(file: Path) -> tuple[list[Result], list[dict[str, Any]]]:
    """Runs with a kill that hit, and stops. A seed that ran again counts again: no rerun hides a flaw."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    names = {field.name for field in fields(Result)}
    runs = [Result(**{name: line[name] for name in names}) for line in lines if line["what"] == "run"]
    kills = [one for one in runs if one.kind != "none" and one.killed]
    return kills, [line for line in lines if line["what"] == "stop"]


def summary(runs: Sequence[Result], stops: Sequence[dict[str, Any]]) -> str:
    """The last line of the harness."""
    ratio = max((one.generated_ratio for one in runs), default=0.0)
    stop = max((float(one["stop_s"]) for one in stops), default=0.0)
    return (
        f"chaos: runs={len(runs)} lost={sum(one.lost for one in runs)} "
        f"duplicated={sum(one.duplicated for one in runs)} generated_ratio={ratio:.3f} stop_max_s={stop:.1f}"
    )
