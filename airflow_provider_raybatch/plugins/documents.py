# SPDX-License-Identifier: Apache-2.0
"""Documents of a destination, parsed within bounds: a small file may become a page of gigabytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.manifest import BatchManifest, parse_manifest
from airflow_provider_raybatch.contract.report import Report, parse_report
from airflow_provider_raybatch.contract.run_numbers import is_count
from airflow_provider_raybatch.plugins.task_key import NotShownError

MOST_VALUES = 50_000
"""Of a document, at any depth: thousands of columns and replicas have less."""
MOST_LISTED = 500
"""Files of a manifest that are kept, and columns that are shown."""

Document = TypeVar("Document")


@dataclass(frozen=True)
class Manifest:
    """A manifest with its first files alone.

    :param files: how many it has, with so many `bytes`.
    """

    content: BatchManifest
    files: int
    bytes: int


def report_in(content: bytes, path: str) -> Report:
    """The report in a file.

    :raises NotShownError: it is broken, foreign, of another version, or has too many values.
    """
    _check(_loaded(content), path)
    return parsed(parse_report, content, path)


def manifest_in(content: bytes, path: str) -> Manifest:
    """The manifest in a file; raises as :func:`report_in`."""
    document = _loaded(content)
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, list) or len(files) <= MOST_LISTED:
        found = files if isinstance(files, list) else []
    else:
        found, document["files"] = files, files[:MOST_LISTED]
        content = json.dumps(document).encode()
    _check(document, path)
    sizes = [one.get("bytes") for one in found if isinstance(one, dict)]
    size = sum(one for one in sizes if is_count(one))
    return Manifest(parsed(parse_manifest, content, path), len(found), size)


def parsed(parse: Callable[[bytes, str], Document], content: bytes, path: str) -> Document:
    """What `parse` makes of a file.

    :raises NotShownError: it can't.
    """
    try:
        return parse(content, path)
    except SpecError as error:
        raise NotShownError(str(error)) from error


def _loaded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None  # the contract's own parser says what is wrong


def _check(document: Any, path: str) -> None:
    """Count without recursion, and no further than needed."""
    waiting, count = [document], 0
    while waiting:
        one = waiting.pop()
        inner = list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else ()
        count += len(inner)
        if count > MOST_VALUES:
            raise NotShownError(f"{path}: it has more values than the {MOST_VALUES:,} that are shown here.")
        waiting += [each for each in inner if isinstance(each, (dict, list))]
