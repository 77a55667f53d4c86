# SPDX-License-Identifier: Apache-2.0
"""Name each proof that is older than the last change of what it proves.

A proof is a page of results that takes too long to make for each commit. It names the commit that it is of;
the first one on the page counts. ``python .ci/proofs.py``, with the standard library and git alone.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "benchmarks/results"
PACKAGE = "airflow_provider_raybatch"
_RUNS = ("operators", "triggers", "cluster", "job", "storage")
_BATCH_API = ("batch_api", "operators", "job")
PROOFS: dict[str, tuple[str, ...]] = {
    "batch_api_kills": _BATCH_API,
    "chaos": _RUNS,
    "chaos_early": _RUNS,
    "chaos_steps": _RUNS,
    "chaos_three_replicas": _RUNS,
    "chaos_warm": ("job/warm_engines", "job/replica", "job/engine_process"),
    "embed_truth": ("job/engine", "job/tasks", "job/request"),
    "job_kills": ("job", "storage"),
    "kill_points": _RUNS,
    "kubernetes_kills": ("kubernetes", "operators", "triggers"),
    "score_truth": ("job/engine", "job/tasks", "job/request"),
    "shared_cluster_kills": ("kubernetes", "operators", "triggers"),
    "throughput": ("job/engine", "job/engine_process", "job/planning", "job/replica", "job/scheduling"),
    "two_gpus": ("job/engine_process", "job/replica", "job/scheduling", "job/row_order"),
}
"""Pages below :data:`RESULTS`, and the folders of :data:`PACKAGE` that each is about."""
_COMMIT = re.compile(r"\bcommits? ([0-9a-f]{7,40})\b", re.IGNORECASE)


def git(*arguments: str) -> str:
    """Return git's answer; ``""`` if it refuses.

    :raises OSError: git is not installed.
    """
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit_of(page: str) -> str:
    """Return the commit of a page.

    :raises ValueError: it names none.
    """
    found = _COMMIT.search((ROOT / RESULTS / f"{page}.md").read_text())
    if found is None:
        raise ValueError(f"{RESULTS}/{page}.md names no commit; write which one it is of.")
    return found[1]


def stale() -> list[str]:
    """One line for each proof that is older than its code; none in a shallow clone, which can't tell."""
    if git("rev-parse", "--is-shallow-repository") != "false":
        return []
    lines = []
    for page, folders in PROOFS.items():
        paths, commit = [f"{PACKAGE}/{folder}" for folder in folders], commit_of(page)
        if not git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
            lines.append(f"OLD PROOF {page}.md: commit {commit} is not in this history")
        elif since := int(git("rev-list", "--count", f"{commit}..HEAD", "--", *paths) or 0):
            lines.append(f"OLD PROOF {page}.md: since {commit}, {since} commits changed {', '.join(folders)}")
    return lines


if __name__ == "__main__":
    print(*stale(), sep="\n")
