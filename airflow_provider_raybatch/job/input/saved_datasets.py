# SPDX-License-Identifier: Apache-2.0
"""Folders that ``save_to_disk`` of Hugging Face ``datasets`` has written: ``state.json`` names their files.

Other Arrow files may lie there: shards of an earlier save, and caches that ``map`` has left.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.storage.entry import Entry
from airflow_provider_raybatch.storage.folder import ReadableFolder

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


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
        if _SPLITS in there:
            _refuse_splits(uri, _document(place, there[_SPLITS], uri))
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
