# SPDX-License-Identifier: Apache-2.0
"""A response store before a merge, and its responses after a strike."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.job.request.key_array import from_arrow
from airflow_provider_raybatch.job.reuse.store.compaction import MANY
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.tasks.generate import output_type
from airflow_provider_raybatch.storage.folder import folder

from .places import Place

_ROWS = 3


def fill(place: Place) -> None:
    """Store enough small submissions that a merge follows the next one."""
    store = _store(place, [])
    for submission in range(MANY):
        store.add(f"earlier-{submission}", [_table(f"{submission}-{row}" for row in range(_ROWS))])


def lost(place: Place) -> int:
    """Return how many responses of :func:`fill` are missing or changed."""
    texts = [f"{submission}-{row}" for submission in range(MANY) for row in range(_ROWS)]
    return len(
        {_key(text): _output(text) for text in texts}.items() ^ _found(place, map(_key, texts)).items()
    )


def wrong(place: Place, destination: Place) -> int:
    """Return how many rows of a run have another response in the store than in their part."""
    paid: dict[bytes, str] = {}
    for path, content in destination.contents("_raybatch/parts/").items():
        if path.endswith(".parquet"):
            for row in pq.read_table(io.BytesIO(content), columns=["key", "output"]).to_pylist():
                paid[row["key"]] = row["output"]["response"]
    found = _found(place, paid)
    return sum(paid[key] != response for key, response in found.items())


def _store(place: Place, notices: list[Any]) -> ResponseStore:
    return ResponseStore(folder(place.uri, place.credentials), notices.append)


def _found(place: Place, keys: Iterable[bytes]) -> dict[bytes, str]:
    notices: list[Any] = []
    store = _store(place, notices)
    wanted = np.unique(from_arrow(pa.array(list(keys), pa.binary(16))))
    tables = list(store.read(store.lookup(wanted)))
    assert not notices, notices
    return {row["key"]: row["output"]["response"] for table in tables for row in table.to_pylist()}


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _output(text: str) -> str:
    return f"answer {text}"


def _table(texts: Iterable[str]) -> pa.Table:
    listed = list(texts)
    outputs = [
        {
            "response": _output(text),
            "finish_reason": "stop",
            "input_tokens": 1,
            "cached_tokens": 0,
            "output_tokens": 1,
            "completions": [{"text": _output(text), "finish_reason": "stop", "output_tokens": 1}],
        }
        for text in listed
    ]
    keys = pa.array([_key(text) for text in listed], pa.binary(16))
    return pa.table({"key": keys, "output": pa.array(outputs, output_type(True))})
