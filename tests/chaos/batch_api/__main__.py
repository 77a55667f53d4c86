# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos.batch_api --seeds 0:4 --results FILE``: kills beside clients of the Batch API."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from .. import results
from ..version import version
from .plan import plan
from .rounds import USERS, play
from .world import BatchApiWorld


def main() -> int:
    parser = argparse.ArgumentParser(prog="batch_api", description=__doc__)
    parser.add_argument("--seeds", default="0:4", help="FROM:TO, a round for each, without TO")
    parser.add_argument("--each", type=int, default=2, help="kills of each kind in a round")
    parser.add_argument("--users", type=int, default=USERS, help="that make batches at the same time")
    parser.add_argument("--results", type=Path, required=True, help="a file to which each round adds a line")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    first, _, end = given.seeds.partition(":")
    for name in ("httpx", "httpx2", "openai"):
        logging.getLogger(name).setLevel(logging.WARNING)
    code, flawed = version(), 0
    with BatchApiWorld() as world:
        for seed in range(int(first), int(end)):
            print(f"round {seed}", flush=True)
            result = play(world, seed, plan(seed, given.each), code, given.users)
            results.append_line(given.results, asdict(result))
            print(result, flush=True)
            if result.flaws:
                flawed += 1
                world.keep(given.results.parent / f"flawed-{seed}")
    return 1 if flawed else 0


if __name__ == "__main__":
    sys.exit(main())
