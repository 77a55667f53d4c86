# SPDX-License-Identifier: Apache-2.0
"""Delete the doors on a copy, with their tests and pages, and check that the core does not miss them.

A door is a room beside the core. ``python .ci/doors.py`` deletes all of them and checks that each import
statement, also in a function or for types, names a module that is there; runs mypy; and imports all modules
and collects all tests, in one process, so that Airflow, Ray and vLLM are imported once. With --all or names,
it does so with each door alone, and runs the unit tests of the rooms next to it, too.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "airflow_provider_raybatch"


@dataclass(frozen=True)
class Door:
    """A room that can be deleted.

    :param paths: patterns of what belongs to it: code, tests and their helpers, pages, examples.
    :param neighbours: patterns of the unit tests next to it.
    """

    name: str
    paths: tuple[str, ...]
    neighbours: tuple[str, ...]


DOORS = (
    Door(
        "batch_api",
        (
            f"{PACKAGE}/batch_api", "tests/unit/batch_api", "tests/unit/model/*batch*.py",
            "tests/support/batch_*.py", "tests/support/forms.py", "tests/support/openai_scenarios.py",
            "tests/support/served_dags", "tests/support/served_operator.py", "tests/chaos/batch_api",
            "tests/integration/test_served_batches.py", "tests/integration/end_to_end/batch_*.py",
            "tests/integration/end_to_end/test_batch_api.py",
            "tests/integration/end_to_end/test_openai_operators.py",
            "docs/batch_api", "benchmarks/batch_api_load.py",
        ),
        ("tests/unit/plugins", "tests/unit/contract", "tests/unit/job/monitor", "tests/unit/operators"),
    ),
    Door(
        "kubernetes",
        (
            f"{PACKAGE}/kubernetes", *(f"tests/{kind}/kubernetes" for kind in ("unit", "support", "chaos")),
            "tests/integration/end_to_end/kubernetes", "tests/integration/end_to_end/dags/clusters",
            "docs/kubernetes*", "dags_examples/left_clusters.py", "dags_examples/shared_cluster.py",
        ),
        ("tests/unit/places", "tests/unit/hooks", "tests/unit/sensors", "tests/unit/triggers"),
    ),
    Door(
        "workflows",
        (
            f"{PACKAGE}/workflows", "docs/workflows.md", "tests/unit/workflows", "tests/unit/dags_examples",
            "tests/unit/test_examples.py", "tests/integration/end_to_end/test_example.py",
            "tests/integration/end_to_end/test_secured.py", "tests/integration/end_to_end/test_workflows.py",
            "dags_examples/data_curation.py", "dags_examples/model_evaluation.py",
            "dags_examples/nightly_synthetic_data.py", "dags_examples/run_*.py",
            *(f"dags_examples/demo_model/{name}.py" for name in ("evaluate", "reviews", "train")),
        ),
        ("tests/unit/dataset", "tests/unit/report", "tests/unit/contract"),
    ),
)  # fmt: skip
"""Another door is another entry."""

_IMPORT_AND_COLLECT = f"""
import importlib, pkgutil, sys
import {PACKAGE} as package, pytest
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "tests"]))
"""


def copied(into: Path) -> None:
    """Copy what git tracks or would track, as links to the same files, which are read or deleted alone."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(ROOT / name, into / name)
    if (ROOT / ".mypy_cache").is_dir():  # what lint has left, so that few modules are checked again
        shutil.copytree(ROOT / ".mypy_cache", into / ".mypy_cache")


def found_by(patterns: Iterable[str], root: Path) -> list[Path]:
    """What patterns name. :raises SystemExit: one names nothing, so the list of doors is old."""
    found = {pattern: sorted(root.glob(pattern)) for pattern in patterns}
    for pattern, some in found.items():
        if not some:
            raise SystemExit(f"doors: {pattern} names nothing; correct the list of doors.")
    return [path for some in found.values() for path in some]


def broken_imports(root: Path) -> Iterator[str]:
    """Import statements of the package that name a module which is not there, one line each."""
    for file in sorted((root / PACKAGE).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                names = [one.name for one in node.names]
            for name in names:
                place = root / name.replace(".", "/")
                is_there = place.is_dir() or place.with_suffix(".py").is_file()
                if name.startswith(f"{PACKAGE}.") and not is_there:
                    yield f"{file.relative_to(root)}:{node.lineno}: {name} is behind the door"


def check(door: Door) -> bool:
    """Delete a door in a copy, and print what then fails; whether nothing does."""
    copy, before = ROOT / "build" / "doors" / door.name, sum(os.times()[2:4])
    shutil.rmtree(copy, ignore_errors=True)
    copied(copy)
    for path in found_by(door.paths, copy):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # in a folder of another door
    wrong = list(broken_imports(copy))
    commands = [["-m", "mypy", PACKAGE], ["-c", _IMPORT_AND_COLLECT]]
    if door.neighbours:
        tests = [str(path) for path in found_by(door.neighbours, copy)]
        commands.append(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not thorough", *tests])
    environment = {**os.environ, "AIRFLOW_HOME": str(copy / "airflow")}
    for command in commands:
        done = subprocess.run([sys.executable, *command], cwd=copy, env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip
        if done.returncode:
            wrong.append(f"python {command[1]} fails:\n{done.stdout[-20_000:]}")
    print(*wrong, f"doors: {door.name} {'is missed' if wrong else 'can be deleted'}", sep="\n", end=" ")
    print(f"({sum(os.times()[2:4]) - before:.0f} s of CPU)", flush=True)
    shutil.rmtree(copy)
    return not wrong


def main(arguments: list[str]) -> int:
    """Check the doors that are named, by default all at once; returns the exit status."""
    everything = Door("all", tuple(path for door in DOORS for path in door.paths), ())
    chosen = [door for door in DOORS if door.name in arguments or "--all" in arguments] or [everything]
    results = [check(door) for door in chosen]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
