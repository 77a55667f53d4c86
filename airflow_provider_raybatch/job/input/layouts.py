# SPDX-License-Identifier: Apache-2.0
"""Folders as other tools lay them out: what of them is data, and what must not be read as plain files.

``state.json`` names the files that ``save_to_disk`` of Hugging Face ``datasets`` has written. Other Arrow
files may lie there: shards of an earlier save, and caches that ``map`` has left. Delta, Iceberg and Hudi keep
deleted and replaced rows in files like those that count. Only a table's log tells them apart; it lies at the
table's root, which may be above the source's folder.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import Entry, in_order
from airflow_provider_raybatch.storage.folder import ReadableFolder

_STATE, _INFO, _DICT = "state.json", "dataset_info.json", "dataset_dict.json"
_NOT_DATA = frozenset({"README.md", "config.json", _INFO, "dataset_infos.json", _DICT})
_JSON = re.compile(r"\.json(?:\.gz|\.zst)?$", re.IGNORECASE)
_FIRST = ("parquet", "jsonl", "csv", "arrow")
"""The order of formats of which a folder has equally many files."""
_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF = {word: split for split, words in _SPLITS.items() for word in words}
_WORD = re.compile(rf"(?<![^-._ 0-9])(?:{'|'.join(_SPLIT_OF)})(?![^-._ 0-9])")
_SHARD = re.compile(r".*/data/([^/]+)-\d{5}-of-\d{5}[^/]*")
_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
_ICEBERG = "metadata"
_ICEBERG_METADATA = re.compile(r"(?:v\d+|\d{5,}-[0-9a-f-]{36})(?:\.gz)?\.metadata\.json(?:\.gz)?")
"""Names that Iceberg gives; other folders of that name are not tables."""
_SIGNS = (*(f"{name}/" for name in _LOGS), f"{_ICEBERG}/")

Kinds: TypeAlias = dict[tuple[str, str], str | None]
"""The kind of table of each folder that was asked for, by bucket and path."""


def saved_files(place: ReadableFolder, inside: str, entries: Sequence[Entry]) -> list[Entry] | None:
    """The files of the dataset that was saved in a folder, in its order; ``None`` for any other folder.

    :param inside: the folder's path in `place`.
    :param entries: what was listed below it.
    :raises PreflightError: it has several splits, lacks a file, or its rows are not its files' rows.
    """
    prefix = f"{inside}/" if inside else ""
    there = {entry.path.removeprefix(prefix): entry for entry in entries}
    uri = f"{place.uri.rstrip('/')}/{inside}"
    if not {_STATE, _INFO} <= there.keys():
        if _DICT in there:
            _refuse_splits(uri, _document(place, there[_DICT], uri))
        return None
    state = _document(place, there[_STATE], uri)
    if state.get("_indices_data_files"):
        raise PreflightError(
            f"source: {uri} was saved with an indices mapping, as old versions of datasets do, so its files "
            "have rows that the dataset lacks; load it with datasets, and save it again."
        )
    names = [_name(one) for one in _list(state.get("_data_files"))]
    missing = next((name for name in names if name not in there), None)
    if missing is not None:
        raise PreflightError(
            f"source: {uri} lacks {missing}, which its {_STATE} lists; copy or save the dataset whole."
        )
    return [there[name] for name in names]


def _refuse_splits(uri: str, found: dict[str, Any]) -> None:
    names = [name for name in _list(found.get("splits")) if isinstance(name, str)]
    example = f", such as {uri}/{names[0]}" if names else ""
    raise PreflightError(
        f"source: {uri} is a DatasetDict with the splits {', '.join(names) or 'of no name'}; name the folder "
        f"of one{example}."
    )


def _document(place: ReadableFolder, entry: Entry, uri: str) -> dict[str, Any]:
    try:
        found = json.loads(place.read(entry.path))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        name = entry.path.rpartition("/")[2]
        raise PreflightError(f"source: {uri} has a {name} that is not a JSON object; save the dataset again.")
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _name(file: Any) -> str:
    return str(file.get("filename")) if isinstance(file, dict) else str(file)


def data_paths(
    paths: Sequence[str], named: str, format_of: Callable[[str], str | None] | None = None
) -> list[str]:
    """The paths that are not of metadata.

    :param named: the last name of a glob, which may ask for metadata.
    :param format_of: for a folder of the hub, where the format that most files have counts. A ``.json`` file
        is data there only if no file of another extension is.
    """
    found = [path for path in paths if path.rpartition("/")[2] not in _NOT_DATA - {named}]
    if format_of is None or not found:
        return found
    found = [path for path in found if not _JSON.search(path)] or found
    counts = Counter(map(format_of, found))
    most = max(_FIRST, key=lambda kind: counts[kind])
    return [path for path in found if format_of(path) == most]


def split_note(uris: Sequence[str], rows: Sequence[int]) -> str:
    """Which splits files are of, as a clause; empty unless they are of several.

    :param rows: of each file.
    """
    counts: Counter[str] = Counter()
    for split, number in zip(_splits(uris), rows, strict=True):
        counts[split] += number
    told = ", ".join(f"{split} ({count_of(number, 'row')})" for split, number in counts.items() if split)
    if len(counts.keys() - {""}) < 2:
        return ""
    return f"its files are of several splits, which are read together: {told}; to read one, name its files"


def _splits(uris: Sequence[str]) -> list[str]:
    """The split of each file; the first rule that knows one is that of all files."""
    start = len(posixpath.commonprefix(list(uris)).rpartition("/")[0]) + 1
    parts = [uri[start:].rpartition("/") for uri in uris]
    rules = (
        [found[1] if (found := _SHARD.fullmatch(uri)) else "" for uri in uris],
        [next(filter(None, map(_split_in, folders.split("/"))), "") for folders, _, _ in parts],
        [_split_in(name) for _, _, name in parts],
    )
    return next(filter(any, rules), [""] * len(uris))


def _split_in(name: str) -> str:
    found = _WORD.search(name)
    return _SPLIT_OF[found[0]] if found else ""


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
