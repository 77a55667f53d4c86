# SPDX-License-Identifier: Apache-2.0
"""What is shipped to a cluster: zips named after their content, so that each is uploaded once.

Ray puts the unpacked folder on ``PYTHONPATH`` (``py_modules``) or makes it the working directory
(``ray._private.runtime_env.packaging``), so a package's folder lies at the zip's root.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

import airflow_provider_raybatch
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import PackageError
from airflow_provider_raybatch.contract.layout import WHEELS_FOLDER

FOLDER_LIMIT = 200 * 1024 * 1024
"""Bytes that a folder may hold before compression; beyond it something other than source code travels."""

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip can hold
_FILE_MODE = 0o100644
_LEFT_OUT = frozenset({
    "__pycache__",
    ".git",
    ".hg",
    ".svn",
    ".venv",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
})
_KEPT_METADATA = frozenset({"METADATA", "WHEEL"})
_EXTENSIONS = frozenset({".so", ".pyd"})
"""Distributions whose Python code does the same where their extension modules are missing."""
_LEFT_OUT_SUFFIXES = frozenset({".pyc", ".pyo"})
_ENVIRONMENT_FILES = re.compile(r"\.env(rc|\..*)?")
"""They hold secrets, and whoever may call the Jobs API may read packages."""


@dataclass(frozen=True)
class Package:
    """Files that travel together.

    :param files: content by path inside the zip.
    """

    files: Mapping[str, bytes] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """32 hex digits over paths and contents; the compression doesn't matter."""
        total = hashlib.sha256()
        for path in sorted(self.files):
            for part in (path.encode(), self.files[path]):
                total.update(len(part).to_bytes(8, "big"))
                total.update(part)
        return total.hexdigest()[:32]

    @property
    def uri(self) -> str:
        """``gcs://_ray_pkg_<digest>.zip``."""
        return f"gcs://_ray_pkg_{self.digest}.zip"

    @cached_property
    def content(self) -> bytes:
        """The zip: same files, same bytes. Made only when asked for, since most clusters have it already."""
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(self.files):
                entry = zipfile.ZipInfo(path, date_time=_EPOCH)
                entry.external_attr = _FILE_MODE << 16
                archive.writestr(entry, self.files[path], zipfile.ZIP_DEFLATED)
        return stream.getvalue()


@lru_cache(maxsize=1)
def package_of_provider() -> Package:
    """The modules of this package that the job imports; none of them needs Airflow or httpx."""
    root = Path(airflow_provider_raybatch.__file__).parent
    files = {"__init__.py": (root / "__init__.py").read_bytes(), "py.typed": b""}
    for folder in ("contract", "report", "storage", "job"):
        files.update({f"{folder}/{path}": content for path, content in _read_folder(root / folder)})
    return Package({f"{root.name}/{path}": content for path, content in files.items()})


async def ensure_package(client: RayJobsClient, package: Package) -> str:
    """Upload `package` unless the cluster has it, and hand back its URI."""
    if not await client.has_package(package.uri):
        content = await asyncio.to_thread(lambda: package.content)
        await client.upload_package(package.uri, content)
    return package.uri


@lru_cache(maxsize=8)
def package_of_wheels(*distributions: str) -> Package:
    """The importable files of distributions that are installed here, with their metadata.

    Extension modules, if any, must fit more than this Python (``.abi3.so``), since the cluster's may be
    another one. The platform must be the cluster's: what is on a Mac does not fit Linux nodes, which then
    need their own. See :mod:`airflow_provider_raybatch.contract.layout`.

    :raises PackageError: one is not installed, or its extension modules fit this Python only.
    """
    return Package({path: content for name in distributions for path, content in _wheel(name).items()})


@lru_cache(maxsize=8)
def package_of_needs(*distributions: str) -> Package:
    """What the job needs besides Ray and vLLM: distributions, as :func:`package_of_wheels`, and Jinja2.

    By Jinja2, reports become pages. It travels as Python alone, whatever has installed it here.
    """
    files = dict(package_of_wheels(*distributions).files)
    for name in ("jinja2", "markupsafe"):
        found = importlib.util.find_spec(name)  # not imported
        (folder,) = found.submodule_search_locations if found is not None else [""]  # type: ignore[misc]
        inside = f"{WHEELS_FOLDER}/{name}/"
        files |= {
            inside + path: content
            for path, content in _read_folder(Path(folder))
            if Path(path).suffix not in _EXTENSIONS
        }
    return Package(files)


def _wheel(distribution: str) -> dict[str, bytes]:
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise PackageError(
            f"wheels: {distribution!r} is not installed here, so it can't be shipped to the cluster; install "
            "it."
        ) from None
    name_and_version = f"{found.name} {found.version}"
    files: dict[str, bytes] = {}
    for path in found.files or ():
        name = PurePosixPath(path).as_posix()
        # RECORD and similar files describe the installation on this machine. WHEEL names the platform, which
        # an error on a node of another platform has to name.
        is_metadata = path.parts[0].endswith(".dist-info")
        if ".." in path.parts or _is_left_out(path) or (is_metadata and path.name not in _KEPT_METADATA):
            continue
        if path.suffix in _EXTENSIONS and ".abi3." not in path.name:
            raise PackageError(
                f"wheels: {name_and_version} holds {name}, which fits only this Python; name a "
                "distribution that is pure Python or uses the stable ABI, or have it in the cluster's image."
            )
        files[f"{WHEELS_FOLDER}/{name}"] = Path(str(found.locate_file(path))).read_bytes()
    if not files:
        raise PackageError(
            f"wheels: {name_and_version} lists no files (an editable install?); install it as a wheel."
        )
    return files


def package_of_folder(folder: str | Path, inside: str = "") -> Package:
    """All files of a folder, without caches, version control and environment files (``.env``).

    :param inside: path inside the zip under which the files lie; by default at its root.
    :raises PackageError: there is no such folder, or it holds more than 200 MiB.
    """
    root = Path(folder)
    if not root.is_dir():
        raise PackageError(
            f"{str(folder)!r} is not a folder here, so it can't be shipped to the cluster; correct the path."
        )
    prefix = f"{inside.rstrip('/')}/" if inside else ""
    return Package({prefix + path: content for path, content in _read_folder(root)})


def _read_folder(root: Path) -> Iterator[tuple[str, bytes]]:
    total = 0
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if _is_left_out(inside) or not path.is_file():
            continue
        total += path.stat().st_size
        if total > FOLDER_LIMIT:
            raise PackageError(
                f"The folder {root} holds more than {FOLDER_LIMIT // 2**20} MiB, too much to ship to a "
                "cluster; move data and models out of it."
            )
        yield inside.as_posix(), path.read_bytes()


def _is_left_out(path: PurePosixPath | Path) -> bool:
    return (
        path.suffix in _LEFT_OUT_SUFFIXES
        or not _LEFT_OUT.isdisjoint(path.parts)
        or _ENVIRONMENT_FILES.fullmatch(path.name) is not None
    )
