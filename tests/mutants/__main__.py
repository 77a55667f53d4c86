# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.mutants``: break the safety code in one place at a time; a test must notice each."""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .listed import AREAS, MUTANTS
from .mutant import Mutant
from .scratch import ROOT, Scratch
from .table import page, summary
from .verdicts import GOOD, Result, judge, passes

RESULTS = ROOT / "benchmarks/results/mutants.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="mutants, or areas of them")
    parser.add_argument("--parallel", type=int, default=2, help="mutants at once")
    given = parser.parse_args()
    names = {*given.only}
    selected = [
        mutant
        for area, mutants in AREAS.items()
        for mutant in mutants
        if not names or mutant.name in names or area in names
    ]
    if unknown := names - {mutant.name for mutant in selected} - set(AREAS):
        parser.error(f"--only: no mutant or area has the name {', '.join(sorted(unknown))}.")
    with tempfile.TemporaryDirectory(prefix="raybatch-mutants-") as folder:
        results = judge_all(selected, [Path(folder, str(number)) for number in range(given.parallel)])
    if len(results) == len(MUTANTS):
        RESULTS.write_text("\n".join(page(results)) + "\n")
    print(summary(results))
    return 0 if all(result.verdict in GOOD for result in results) else 1


def judge_all(mutants: Sequence[Mutant], folders: Sequence[Path]) -> list[Result]:
    """Judge each mutant, several at a time.

    :param folders: one for each mutant that runs at the same time; they are created.
    """
    copies: queue.SimpleQueue[Scratch] = queue.SimpleQueue()
    for folder in folders:
        folder.mkdir()
        copies.put(Scratch(folder))
    first = copies.get()
    first.check()
    if (output := passes(first, mutants)) is not None:
        raise SystemExit(f"{output}\nThe tests fail without a mutant, so their results would mean nothing.")
    print(f"The tests of {len(mutants)} mutants pass without them.", flush=True)
    copies.put(first)

    def one(mutant: Mutant) -> Result:
        copy = copies.get()
        try:
            result = judge(copy, mutant)
        finally:
            copies.put(copy)
        print(f"{result.verdict:10} {mutant.name} {result.seconds:.0f} s {result.killer}", flush=True)
        if result.output:
            print(result.output[-2000:], flush=True)
        return result

    with ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(one, mutants))


if __name__ == "__main__":
    sys.exit(main())
