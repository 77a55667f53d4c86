# SPDX-License-Identifier: Apache-2.0
"""What this process's children wrote while an engine failed to start.

Errors in vLLM's own processes reach the parent only as "see root cause above". In a Ray worker, "above" is a
log file on the node.
"""

from __future__ import annotations

import re
from pathlib import Path

_ERROR = re.compile(r"\b((?:[A-Za-z_][\w.]*)?(?:Error|Exception)): (.+)$")
_GENERIC = ("initialization failed", "See root cause above", "See stack trace for root cause")
_MOST_BYTES = 2_000_000


class OwnLog:
    """Remembers where stdout and stderr stood, to find what was written since."""

    def __init__(self) -> None:
        self._starts = {path: path.stat().st_size for path in _files()}

    def root_cause(self) -> str | None:
        """The first error written since, as ``Class: text``; ``None`` without one or without a log file."""
        for path, start in self._starts.items():
            with path.open("rb") as file:
                file.seek(start)
                text = file.read(_MOST_BYTES).decode(errors="replace")
            for line in text.splitlines():
                found = _ERROR.search(line)
                if found and not any(mark in line for mark in _GENERIC):
                    return f"{found.group(1)}: {found.group(2)}"
        return None


def _files() -> list[Path]:
    paths = []
    for descriptor in (1, 2):
        try:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
        except OSError:
            continue
        if path.is_file() and path not in paths:
            paths.append(path)
    return paths
