# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos.points --results FILE``: a run for each point, mode and store."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from tests.support.s3_server import serving

from ..results import append_line, read_lines
from ..version import DIRTY, version
from ..world import World
from .catalogue import Aim, table
from .journeys import journeys
from .page import page
from .striking import Outcome, together


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.points", description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="a file to which each run adds a line")
    parser.add_argument("--page", type=Path, help="a file for the table of all results")
    parser.add_argument("--parallel", type=int, default=4, help="runs at once")
    parser.add_argument("--only", default="", help="a regular expression that a cell's text must match")
    parser.add_argument("--journeys", type=int, help="instead, the few runs with all points of this number")
    parser.add_argument("--note", default="", help="a remark on the machine")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    aims = table() if given.journeys is None else journeys(given.journeys)
    aims = [aim for aim in aims if re.search(given.only, str(aim))]
    code = version()
    done = {
        Aim(tuple(line["points"]), line["mode"], line["store"], line["signal"])
        for line in read_lines(given.results)
        if line["commit"] == code and not line["flaws"] and not code.endswith(DIRTY)
    }

    def note(outcome: Outcome) -> None:
        append_line(given.results, {"commit": code, **asdict(outcome)})
        print(outcome, flush=True)

    left = [aim for aim in aims if aim not in done]
    if left:
        # Each run may have two drivers with replicas, and one of the drivers is frozen.
        with World(cpus=2 * given.parallel) as world, serving() as server:
            together(world, left, given.parallel, note, given.results.parent / "flawed", server)
    lines = read_lines(given.results)
    if given.page is not None:
        given.page.write_text("\n".join(page(lines, given.note)) + "\n")
    flawed = sum(bool(line["flaws"]) for line in lines)
    print(f"kill points: runs={len(lines)} flawed={flawed}")
    return 1 if flawed else 0


if __name__ == "__main__":
    sys.exit(main())
