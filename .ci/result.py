# SPDX-License-Identifier: Apache-2.0
"""Print what a run of the checks has found: failures, proofs that are older than the code, and one line.

``python .ci/result.py FOLDER SECONDS STAGE=SECONDS:CODE...``; FOLDER holds what pytest left, STAGE.json, and
stages may have run side by side in these seconds. The standard library alone. The exit code is 1 if a stage
failed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import proofs

ALL = "--all"
EVERY = "make test-all"


def clock(seconds: int) -> str:
    """Minutes and seconds, as ``4:05``."""
    return f"{seconds // 60}:{seconds % 60:02}"


def failures(found: Sequence[dict[str, Any]], codes: dict[str, int]) -> list[str]:
    """Name the failed tests, and what failed without one, as a collection does."""
    lines = [f"FAILED {test}: {why}" for one in found for test, why in one["failures"].items()]
    unsaid = [one["stage"] for one in found if one["code"] and not one["failures"]]
    said = {name for one in found if one["code"] for name in (one["stage"], one["stage"].partition("-")[0])}
    unsaid += [stage for stage, code in codes.items() if code and stage not in said]
    return lines + [f"FAILED {stage}: its output is above" for stage in unsaid]


def old_proofs() -> list[str]:
    """See :func:`proofs.stale`; what keeps it from looking is a line, too."""
    try:
        return proofs.stale()
    except (OSError, ValueError) as error:
        return [f"PROOFS were not compared: {error}"]


def last_line(
    command: str, found: Sequence[dict[str, Any]], spent: int, seconds: dict[str, int], codes: dict[str, int]
) -> str:
    """Say what ran, how long, and what runs elsewhere."""
    failed = [name for name, code in codes.items() if code]
    verdict = f"{', '.join(failed)} FAILED" if failed else "all good"
    stages = ", ".join(f"{name} {clock(its)}" for name, its in seconds.items())
    tests = {name: sum(one[name] for one in found) for name in ("passed", "failed", "skipped")}
    counts = ", ".join(f"{number:,} {name}" for name, number in tests.items() if number) or "no tests"
    # The same tests on the cluster's Python do not count twice.
    left_out = sum(sum(one["left_out"].values()) for one in found if one["stage"] != "unit-cluster")
    shown = left_out and command != EVERY
    alone = f"; {left_out:,} run in {EVERY} alone, see make help" if shown else ""
    return f"{command}: {verdict} in {clock(spent)} ({stages}): {counts}{alone}."


def main() -> int:
    """Print it."""
    folder, spent, *stages = sys.argv[1:]
    command = "make test"
    if ALL in stages:
        stages.remove(ALL)
        command = EVERY
    ends = {name: end.split(":") for name, _, end in (one.partition("=") for one in stages)}
    seconds, codes = ({name: int(end[n]) for name, end in ends.items()} for n in (0, 1))
    found = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    lines = [*old_proofs(), *failures(found, codes), last_line(command, found, int(spent), seconds, codes)]
    print(*lines, sep="\n")
    return 1 if any(codes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
