# SPDX-License-Identifier: Apache-2.0
"""The version of the code of a line in the results file."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGE = "airflow_provider_raybatch"


@dataclass(frozen=True)
class Version:
    """The code that ran.

    :param commit: result of `git describe` for the whole tree.
    :param package: id of the package's tree; commits outside the package don't change it.
    """

    commit: str
    package: str


def version(root: Path = _ROOT) -> Version:
    """Return the version of the checkout, with ``-dirty`` at its end if there are uncommitted changes."""

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
