# SPDX-License-Identifier: Apache-2.0
"""CPU seconds that publishing takes for an input of many columns and few rows, by the number of parts.

python benchmarks/wide_inputs.py > benchmarks/results/wide_inputs.md
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import part, publish

COLUMNS, ROWS = 2_000, 50
PARTS = (1, 10, 50)
HEAD = f"""# Publishing wide inputs

{COLUMNS:,} columns, {ROWS} rows of JSONL, of text, numbers and lists; on a local disk, by one process.

Made by `python benchmarks/wide_inputs.py`, which runs no Ray.

| parts | publishing, s of CPU |
|---|---|"""


def measure(parts: int) -> float:
    """Publish all rows out of so many parts."""
    rows = [{f"c{n}": (f"t{row}", n * row, n / 7, [n])[n % 4] for n in range(COLUMNS)} for row in range(ROWS)]
    with tempfile.TemporaryDirectory() as place:
        folder, each = LocalFolder(place), ROWS // parts
        written = [part(folder, rows[first : first + each], first=first) for first in range(0, ROWS, each)]
        began = time.process_time()
        publish(folder, written, ROWS)
        return time.process_time() - began


if __name__ == "__main__":
    print(HEAD)
    for number in PARTS:
        print(f"| {number} | {measure(number):.1f} |", flush=True)
