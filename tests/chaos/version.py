# SPDX-License-Identifier: Apache-2.0
"""The version of the code of a line in the results file."""

from __future__ import annotations

import subprocess
from pathlib import Path

DIRTY = "-dirty"


def version() -> str:
    """Return the commit of this checkout, with ``-dirty`` at its end if there are uncommitted changes."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", f"--dirty={DIRTY}"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # not a checkout
        return "unknown"
