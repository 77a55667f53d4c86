# SPDX-License-Identifier: Apache-2.0
"""Requests that engines started beside the distinct ones, over kinds of jobs, nights, changes and kills.

Whole jobs of the echo engine, counted by its own log: in this process with a replica and no cluster, or with
`--ray` on a Ray of this machine, then without kills. Prints a table; an AssertionError is a request too many.

    python benchmarks/distinct_requests.py
    python benchmarks/distinct_requests.py --ray
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.local_ray import local_ray
from tests.support.repeated_task import RepeatedTask
from tests.support.shapes import ROWS, TEXTS, nights, shapes
from tests.support.whole_job import without_cluster


@contextmanager
def no_cluster() -> Iterator[None]:
    """Jobs that need none."""
    with pytest.MonkeyPatch.context() as patch:
        without_cluster(patch)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ray", action="store_true")
    on_ray = parser.parse_args().ray
    print("| job | texts in 20 rows | night | asked | distinct and not known |\n|---|---:|---|---:|---:|")
    with local_ray() if on_ray else no_cluster():
        for texts in (TEXTS, ROWS):
            for name, shape in shapes(texts).items():
                with tempfile.TemporaryDirectory() as folder:
                    for night in nights(RepeatedTask(Path(folder)), shape, texts, kills=not on_ray):
                        print(f"| {' | '.join(map(str, (name, texts, *night)))} |", flush=True)
                        assert night.asked == night.needed, night


if __name__ == "__main__":
    main()
