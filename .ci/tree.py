# SPDX-License-Identifier: Apache-2.0
"""Count the folders of the package, the arrows between them, circles and loose modules; fail on a circle.

Fail on a module without a noun of its own, too, which shows in its lines.

An arrow is an import of one child of a folder by another: lazy imports and those for type checking count,
too. A circle is a set of children that reach each other. ``python .ci/tree.py [PACKAGE_FOLDER]``, with the
standard library alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MOST_LOOSE = {"job": 4}
"""Folders in which modules besides folders are counted, and how many there may be."""
FEWEST, MOST = 120, 350
"""Lines of a module: a thinner one is a part of another's noun, and a thicker one has several."""
BOUNDARIES = frozenset({
    # Started, or imported by name, by something else.
    "job/__main__", "job/preview/__main__", "job/preview/main", "job/warm_engines/__main__",
    "job/engine_process/preloaded", "job/control/interpreter", "job/control/process", "batch_api/plugin",
    "plugins/raybatch", "plugins/web", "cli/definition", "kubernetes/provider", "links/ray_dashboard",
    "links/report", "retries", "steps", "exceptions",
    # Seams to what is not of this package.
    "cluster/follow/log_tail", "cluster/jobs_api/blocking", "cluster/jobs_api/errors",
    "cluster/jobs_api/sharing", "cluster/submit/function_source", "contract/arguments/vllm_names",
    "contract/secrets", "job/control/private_package", "job/engine/echo_workers",
    "job/engine_process/front_end", "job/monitor/metrics", "job/replica/remote_call",
    "job/request/key_array", "job/run/ray_data_llm/dataset", "job/run/watch", "kubernetes/api/server",
    "kubernetes/left_clusters", "operators/own_clusters", "report/rendering", "triggers/killable",
    "workflows/warehouse",
    # What one room tells another.
    "dataset/derived", "dataset/errors", "job/preflight/check", "job/preflight/image_check",
    "job/replica/process", "job/reuse/asked", "job/reuse/store/files", "job/scheduling/messages",
    "job/steps/columns", "job/tasks/registry", "job/tasks/optional_columns/groups", "batch_api/store/ids",
    # One question each.
    "batch_api/pages", "batch_api/server/access", "batch_api/server/transfers", "cli/places",
    "job/input/prompt_values", "job/monitor/start_up", "job/replica/admission", "job/replica/contents",
    "job/row_order/lengths", "job/scheduling/poison_search",
})  # fmt: skip
"""Modules that may be thin; at most 60."""
LARGE = frozenset({
    "batch_api/store/validation", "job/input/listing", "job/replica/coordinator", "job/warm_engines/actor",
    "operators/base", "operators/ray_batch",
})  # fmt: skip
"""Modules that are thicker than others may be."""

Module = tuple[str, ...]
"""The path of a module below the package; of a folder's own code, the folder's path."""


@dataclass(frozen=True)
class Level:
    """One folder, as the children that lie directly in it.

    :param arrows: pairs of children; the first imports the second.
    :param circles: children that reach each other, each set once.
    """

    path: Module
    folders: frozenset[str]
    modules: frozenset[str]
    arrows: frozenset[tuple[str, str]]
    circles: tuple[frozenset[str], ...]

    def __str__(self) -> str:
        circles = "; ".join(" <-> ".join(sorted(circle)) for circle in self.circles)
        return (
            f"{'/'.join(self.path) or '.':<28}{len(self.folders):>8}{len(self.arrows):>8}"
            f"{len(self.modules):>8}{len(self.circles):>8}  {circles}"
        ).rstrip()


def levels(package: Path) -> list[Level]:
    """Every folder of a package that holds code, the package itself first."""
    files = {_module(package, file): file for file in sorted(package.rglob("*.py"))}
    imports = {module: set(_imported(package.name, file, files)) for module, file in files.items()}
    folders = sorted(_module(package, file) for file in package.rglob("__init__.py"))
    return [_level(folder, imports, folders) for folder in folders]


def _module(package: Path, file: Path) -> Module:
    path = file.relative_to(package).with_suffix("").parts
    return path[:-1] if path[-1] == "__init__" else path


def _imported(package: str, file: Path, files: Mapping[Module, Path]) -> Iterable[Module]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *path = name.split(".")
            if first != package:
                continue
            while tuple(path) not in files:  # the last part may be a name in the module
                path.pop()
            if path:
                yield tuple(path)


def _level(folder: Module, imports: Mapping[Module, set[Module]], folders: Iterable[Module]) -> Level:
    depth = len(folder)

    def child(module: Module) -> str | None:
        return module[depth] if len(module) > depth and module[:depth] == folder else None

    inside = {name for module in imports if (name := child(module)) is not None}
    below = {path[depth] for path in folders if len(path) > depth and path[:depth] == folder}
    arrows = {
        (name, other)
        for module, targets in imports.items()
        if (name := child(module)) is not None
        for target in targets
        if (other := child(target)) is not None and other != name
    }
    return Level(
        folder,
        frozenset(below),
        frozenset(inside - below),
        frozenset(arrows),
        tuple(_circles(inside, arrows)),
    )


def _circles(nodes: Iterable[str], arrows: Iterable[tuple[str, str]]) -> Iterable[frozenset[str]]:
    targets: dict[str, set[str]] = {}
    for name, other in arrows:
        targets.setdefault(name, set()).add(other)
    reached = {node: _reached(node, targets) for node in nodes}
    circles = {
        frozenset(other for other in reached[node] if node in reached[other])
        for node in reached
        if node in reached[node]
    }
    return sorted(circles, key=sorted)


def _reached(start: str, targets: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in targets.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def faults(found: Iterable[Level]) -> list[str]:
    """What is wrong, a sentence each."""
    wrong = []
    for level in found:
        name = "/".join(level.path) or "the package"
        wrong += [f"{name}: {', '.join(sorted(circle))} import each other." for circle in level.circles]
        most = MOST_LOOSE.get("/".join(level.path))
        if most is not None and len(level.modules) > most:
            wrong.append(f"{name}: {len(level.modules)} loose modules; {most} are allowed.")
    return wrong


def misshapen(package: Path) -> list[str]:
    """The modules that are too thin or too thick, a sentence each."""
    wrong = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).with_suffix("").as_posix()
        lines = len(file.read_text(encoding="utf-8").splitlines())
        is_thin = lines < FEWEST and name not in BOUNDARIES and file.stem != "__init__"
        if is_thin or (lines > MOST and name not in LARGE):
            wrong.append(f"{name}: it has {lines} lines; a module has {FEWEST} to {MOST}.")
    return wrong


def main(arguments: list[str]) -> int:
    """Print the counts; the exit status says whether all is well."""
    root = Path(__file__).resolve().parent.parent / "airflow_provider_raybatch"
    package = Path(arguments[0]).resolve() if arguments else root
    found = levels(package)
    print(f"{'folder':<28}{'folders':>8}{'arrows':>8}{'modules':>8}{'circles':>8}")
    for level in found:
        print(level)
    wrong = faults(found) + misshapen(package)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
