# SPDX-License-Identifier: Apache-2.0
"""A user's function as source: found without importing it, shipped whole."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

from airflow_provider_raybatch.cluster.jobs_api.errors import PackageError
from airflow_provider_raybatch.cluster.submit.package import Package, package_of_folder

SOURCE_LIMIT = 20 * 1024 * 1024
"""Bytes of source that travel with one function."""


def package_of_source(import_path: str, argument: str = "prompt_function") -> Package:
    """The source that a function needs: its top-level module's file, or the whole top-level package.

    :param import_path: ``package.module:function``, which `argument` names.
    :raises PackageError: the module is not found, is a namespace package, is not plain source, imports
        Airflow or is larger than 20 MiB.
    """
    try:
        return _package(import_path)
    except PackageError as error:
        raise PackageError(f"{argument}: {error}") from None


def _package(import_path: str) -> Package:
    module, _, function = import_path.partition(":")
    parts = module.split(".")
    spec = PathFinder.find_spec(parts[0], sys.path)
    if spec is None:
        raise PackageError(
            f"there is no module {parts[0]!r} to ship for {import_path!r}; put it beside the DAG "
            "files or anywhere on PYTHONPATH."
        )
    file = _source_file(spec, import_path)
    if file.name == "__init__.py":
        package = package_of_folder(file.parent, inside=parts[0])
        file = _module_file(file.parent, parts[1:], import_path)
    elif len(parts) > 1:
        raise PackageError(f"{parts[0]!r} is a module and not a package, so {module!r} does not exist.")
    else:
        package = Package({file.name: file.read_bytes()})
    size = sum(map(len, package.files.values()))
    if size > SOURCE_LIMIT:
        largest = max(package.files, key=lambda path: len(package.files[path]))
        raise PackageError(
            f"the source of {import_path!r} has {size / 2**20:.0f} MiB, more than "
            f"{SOURCE_LIMIT // 2**20} MiB; move data out of the package (largest file: {largest})."
        )
    _check_content(file, function, import_path)
    return package


def _source_file(spec: ModuleSpec, import_path: str) -> Path:
    if spec.origin is None:
        raise PackageError(
            f"{spec.name!r} of {import_path!r} is a namespace package (a folder without "
            "__init__.py), whose parts may lie anywhere; add an __init__.py."
        )
    if not isinstance(spec.loader, SourceFileLoader):
        raise PackageError(
            f"{spec.name!r} of {import_path!r} is not plain Python source ({spec.origin}), so it "
            "can't be shipped; put the function into a module of its own."
        )
    return Path(spec.origin)


def _module_file(package: Path, parts: Sequence[str], import_path: str) -> Path:
    stem = package.joinpath(*parts)
    candidates = [stem / "__init__.py"] if not parts else [stem.with_suffix(".py"), stem / "__init__.py"]
    found = next((file for file in candidates if file.is_file()), None)
    if found is None:
        raise PackageError(f"{import_path!r} has no source file {candidates[0]}; correct the import path.")
    return found


def _check_content(file: Path, function: str, import_path: str) -> None:
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        raise PackageError(
            f"{file} is not valid Python (line {error.lineno}: {error.msg}); correct it."
        ) from None
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            if _imports_airflow(node):
                raise PackageError(
                    f"{file} imports Airflow, which the cluster does not have; move {function!r} "
                    "into a module of its own beside the DAG file."
                )
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
        elif hasattr(node, "body"):
            # The name may be defined in an `if`, a loop or the like: the job's import decides.
            names.add(function)
    if function not in names and "*" not in names:
        raise PackageError(
            f"{file} has no top-level {function!r}, as {import_path!r} says; correct the name."
        )


def _imports_airflow(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").partition(".")[0] == "airflow"
    return any(alias.name.partition(".")[0] == "airflow" for alias in node.names)
