# SPDX-License-Identifier: Apache-2.0
"""Which code a line of the results file is about."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGE = "airflow_provider_raybatch"


@dataclass(frozen=True)
class Version:
    """What ran.

    :param commit: `git describe` of the whole tree.
    :param package: id of the package's tree, which commits that leave it alone don't change.
    """

    commit: str
    package: str


def version(root: Path = _ROOT) -> Version:
    """Of the checkout; ``-dirty`` at its end where something is not committed."""

    def git(*command: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *command], check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", _PACKAGE)
        package = git("rev-parse", "--short", f"HEAD:{_PACKAGE}") + ("-dirty" if changed else "")
        return Version(git("describe", "--always", "--dirty"), package)
    except (OSError, subprocess.CalledProcessError):  # not a checkout
        return Version("unknown", "unknown")
