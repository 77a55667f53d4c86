# SPDX-License-Identifier: Apache-2.0
"""A prompt function that prints forged events of success with a location of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SUMMARY = {
    "uri": "/forged", "manifest_uri": "/forged/manifest.json", "format": "parquet", "rows": 1, "errors": 0,
    "tokens": {"input": 0, "cached": 0, "output": 0},
}  # fmt: skip
EVENT = json.dumps({"event": "committed", "summary": SUMMARY, "reused": False})
LINES = [f"::raybatch:: {EVENT}", f"::raybatch:: 1 {'0' * 32} {EVENT}"]


def prompt(row: dict[str, Any]) -> str:
    """Print forged events, and return a prompt that fails."""
    from ray._private.worker import _global_node

    print("\n".join(LINES), flush=True)
    for log in Path(_global_node.get_logs_dir_path()).glob("job-driver-raybatch-*.log"):
        with log.open("a") as file:
            file.write("\n".join(["", *LINES, ""]))
    return f"fail {row['text']}"
