# SPDX-License-Identifier: Apache-2.0
"""Refuses tables: Delta, Iceberg and Hudi keep deleted and replaced rows in files like those that count.

Only the table's log tells them apart. It lies at the table's root, which may be above the source's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import in_order
from airflow_provider_raybatch.storage.folder import ReadableFolder

_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
_ICEBERG = "metadata"
_ICEBERG_METADATA = re.compile(r"(?:v\d+|\d{5,}-[0-9a-f-]{36})(?:\.gz)?\.metadata\.json(?:\.gz)?")
"""Names that Iceberg gives; other folders of that name are not tables."""
_SIGNS = (*(f"{name}/" for name in _LOGS), f"{_ICEBERG}/")


Kinds: TypeAlias = dict[tuple[str, str], str | None]
"""The kind of table of each folder that was asked for, by bucket and path."""


def refuse_tables(
    path: str,
    place: ReadableFolder,
    entries: Sequence[str],
    files: Sequence[str],
    listed: str | None,
    known: Kinds,
) -> None:
    """Refuse files that are a table's.

    :param path: as the source names it.
    :param entries: all files that were listed, bookkeeping included, relative to `place`.
    :param files: of them, those that are to be read.
    :param listed: a folder that was listed with all that is below it, if there is one.
    :param known: from earlier paths of the source, and added to: each folder is asked for once.
    :raises PreflightError: one is below the root of a table.
    :raises StorageError: the storage gives no answer.
    """
    kinds: dict[str, str | None] = {root: kind for root, kind in map(_table_of, entries) if kind}
    holding = {file.rpartition("/")[0] for file in files}
    folders = sorted({above for folder in holding for above in _up(folder)})
    inside = f"{listed}/" if listed else ""
    unlisted = [folder for folder in folders if listed is None or not f"{folder}/".startswith(inside)]
    asked = [folder for folder in unlisted if not _is_partition(folder)]
    new = [folder for folder in asked if (place.uri, folder) not in known]
    found = in_order(lambda folder: _kind_of(place, folder), new)
    known.update(((place.uri, folder), kind) for folder, kind in zip(new, found, strict=True))
    kinds.update((folder, known[place.uri, folder]) for folder in asked)
    for folder in folders:
        if kind := kinds.get(folder):
            root = f"{place.uri.rstrip('/')}/{folder}"
            raise PreflightError(
                f"source: {path} has files of the {kind} table {root}, which also hold rows that were "
                "deleted or replaced; write the rows that count to a folder of Parquet, JSONL or CSV "
                "files elsewhere, and name that."
            )


def _table_of(entry: str) -> tuple[str, str | None]:
    """Root and kind of the table whose log a file belongs to."""
    if not any(sign in entry for sign in _SIGNS):
        return "", None
    *folders, name = entry.split("/")
    for position, folder in enumerate(folders):
        if folder in _LOGS:
            return "/".join(folders[:position]), _LOGS[folder]
    if folders[-1:] == [_ICEBERG] and _ICEBERG_METADATA.fullmatch(name):
        return "/".join(folders[:-1]), "Iceberg"
    return "", None


def _up(folder: str) -> Iterator[str]:
    """A folder and those above it, up to the bucket or the root of the disk (``""``)."""
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
    yield ""


def _is_partition(folder: str) -> bool:
    """Whether this is a partition, so not a table's root; there may be many."""
    return "=" in folder.rpartition("/")[2]


def _kind_of(place: ReadableFolder, folder: str) -> str | None:
    """The kind of the table whose root this is; ``None`` for others, and where the job may not look."""
    at = f"{folder}/" if folder else ""
    try:
        for name, kind in _LOGS.items():
            if place.holds(f"{at}{name}"):
                return kind
        if place.holds(f"{at}{_ICEBERG}"):
            names = (entry.path.rpartition("/")[2] for entry in place.list(f"{at}{_ICEBERG}", 1))
            return "Iceberg" if any(map(_ICEBERG_METADATA.fullmatch, names)) else None
    except StorageError as error:
        if error.failure_class is not FailureClass.USER_ERROR:
            raise
    return None
