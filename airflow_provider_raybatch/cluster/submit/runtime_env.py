# SPDX-License-Identifier: Apache-2.0
"""A user's runtime env, made ready for a cluster that can't see this machine's folders."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.submit.package import Package, ensure_package, package_of_folder
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import nearest

_log = logging.getLogger(__name__)

KNOWN = frozenset({
    "_inject_current_ray", "_nsight", "_ray_commit", "_ray_release", "_rocprof_sys", "conda", "config",
    "container", "env_vars", "excludes", "image_uri", "java_jars", "mpi", "nsight", "pip", "py_executable",
    "py_modules", "rocprof_sys", "uv", "worker_process_setup_hook", "working_dir",
})  # fmt: skip
"""Keys that Ray 2.56 to 2.60 know; it ignores all others without a word."""
KNOWN_OF_CONFIG = frozenset({"eager_install", "log_files", "setup_timeout_seconds"})


async def upload_runtime_env(client: RayJobsClient, runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of `runtime_env` in which local folders are replaced by packages that the cluster has.

    ``working_dir`` and the entries of ``py_modules`` may be folders of this machine (for ``py_modules`` also
    single ``.py`` files); URIs pass through. Ray's own client does the same, but needs Ray here.

    :raises SpecError: a path doesn't exist here, an entry is of the wrong type, or a key is misspelt.
    :raises PackageError: a folder is too large.
    """
    prepared = copied(runtime_env)
    _check_keys(prepared, KNOWN, "runtime_env")
    if isinstance(config := prepared.get("config"), Mapping):
        _check_keys(config, KNOWN_OF_CONFIG, "runtime_env.config")
    working_dir = prepared.get("working_dir")
    if working_dir is not None and not _is_uri(working_dir):
        folder = _existing("working_dir", working_dir)
        package = await asyncio.to_thread(package_of_folder, folder)
        prepared["working_dir"] = await ensure_package(client, package)
    if prepared.get("py_modules") is not None:
        prepared["py_modules"] = [await _module(client, entry) for entry in _modules(prepared)]
    try:
        json.dumps(prepared, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"runtime_env: it can't be written as JSON ({error}); use texts, numbers, lists and dictionaries "
            "alone."
        ) from None
    return prepared


def with_packages(
    runtime_env: Mapping[str, Any] | None, *, working_dir: str, py_modules: Sequence[str]
) -> dict[str, Any]:
    """A copy of `runtime_env` with our working directory and our modules in front of the user's.

    :raises SpecError: the user set a `working_dir`; a job can have only one.
    """
    merged = copied(runtime_env)
    if merged.get("working_dir") is not None:
        raise SpecError(
            f"runtime_env.working_dir: a batch inference brings its own, so {merged['working_dir']!r} can't "
            "be used; ship code by py_modules and read data by path."
        )
    merged["working_dir"] = working_dir
    merged["py_modules"] = [*py_modules, *_modules(merged)]
    return merged


def copied(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """A deep copy, since what an author passes belongs to them."""
    if runtime_env is None:
        return {}
    if not isinstance(runtime_env, Mapping):
        raise SpecError(f"runtime_env: it must be a dictionary, but it is {type(runtime_env).__name__}.")
    return copy.deepcopy(dict(runtime_env))


def _check_keys(given: Mapping[str, Any], known: frozenset[str], field: str) -> None:
    # A less close one may be a plugin's, such as `conda_pack`; `config` has none.
    likeness = 0.85 if known is KNOWN else 0.6
    for name in given.keys() - known:
        if close := nearest(name, known, likeness):
            raise SpecError(
                f"{field}.{name}: Ray knows no such key and would ignore it; did you mean {close}?"
            )
        _log.warning(
            "%s.%s: Ray ignores this key, unless the cluster has a plugin of that name.", field, name
        )


def _modules(runtime_env: Mapping[str, Any]) -> list[str]:
    entries = runtime_env.get("py_modules") or []
    if not isinstance(entries, list) or not all(isinstance(entry, (str, Path)) for entry in entries):
        raise SpecError(f"runtime_env.py_modules: it must be a list of paths or URIs, but it is {entries!r}.")
    return [str(entry) for entry in entries]


async def _module(client: RayJobsClient, entry: str) -> str:
    if _is_uri(entry):
        return entry
    path = _existing("py_modules", entry)
    return await ensure_package(client, await asyncio.to_thread(_module_package, path))


def _module_package(path: Path) -> Package:
    if path.is_dir():
        return package_of_folder(path, inside=path.name)
    if path.suffix != ".py":
        raise SpecError(
            f"runtime_env.py_modules: {str(path)!r} is neither a folder nor a .py file; name one of these."
        )
    return Package({path.name: path.read_bytes()})


def _existing(field: str, value: object) -> Path:
    if not str(value).strip():
        # To a path it is the worker's own folder, with whatever lies there.
        raise SpecError(f"runtime_env.{field}: it is empty; name a folder or leave it out.")
    path = Path(str(value)).expanduser().resolve()
    if not path.exists():
        raise SpecError(
            f"runtime_env.{field}: {str(value)!r} does not exist here; correct the path or give a URI."
        )
    return path


def _is_uri(value: object) -> bool:
    return isinstance(value, str) and "://" in value
