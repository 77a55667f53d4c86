# SPDX-License-Identifier: Apache-2.0
"""The size of a store, by its command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.responses import DAY, START, Shop, table


def test_store_size_is_shown_without_ray(tmp_path: Path) -> None:
    shop = Shop(LocalFolder(str(tmp_path)))
    shop.store().prepare()
    shop.store().add("s", [table(range(3))])
    shop.store(max_age=DAY).add("t", [table(range(3, 5))])
    shop.now += DAY
    shop.folder.write("v1/index/broken.parquet", b"")
    size = shop.store().size()
    assert (size.rows, size.expired, size.submissions, size.data_files) == (5, 2, 2, 2)
    assert (size.segments, size.unusable) == (3, 1)
    assert (size.oldest, size.newest) == (START, START)
    assert size.index_bytes == sum(entry.size for entry in shop.folder.list("v1/index"))
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from airflow_provider_raybatch.cli.definition import main; main(['show', sys.argv[1]])"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parents[5],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.stdout.startswith(
        "5 responses (2 expired) of 2 submissions, stored 2025-06-15 to 2025-06-15;"
    ), completed.stderr
