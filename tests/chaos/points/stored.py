# SPDX-License-Identifier: Apache-2.0
"""A response store before a merge, and its responses after a strike."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.job.request.key_array import from_arrow
from airflow_provider_raybatch.job.reuse.store.compaction import MANY
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.storage.folder import folder
from tests.support.responses import digest, output, table

from ..places import Place, contents

_NAMES = [[f"{submission}-{row}" for row in range(3)] for submission in range(MANY)]


def fill(place: Place) -> None:
    """Store enough small submissions that a merge follows the next one."""
    store = ResponseStore(folder(place.uri, place.credentials), print)
    for submission, names in enumerate(_NAMES):
        store.add(f"earlier-{submission}", [table(names)])


def lost(place: Place) -> int:
    """Return how many responses of :func:`fill` are missing or changed."""
    expected = {digest(name): output(f"to {name}")["response"] for names in _NAMES for name in names}
    return len(expected.items() ^ _found(place, expected).items())


def wrong(place: Place, destination: Place) -> int:
    """Return how many rows of a run have another response in the store than in their part."""
    paid: dict[bytes, str] = {}
    for path, content in contents(destination, "_raybatch/parts/").items():
        if path.endswith(".parquet"):
            for row in pq.read_table(io.BytesIO(content), columns=["key", "output"]).to_pylist():
                paid[row["key"]] = row["output"]["response"]
    return sum(paid[key] != response for key, response in _found(place, paid).items())


def _found(place: Place, keys: Iterable[bytes]) -> dict[bytes, str]:
    notices: list[Any] = []
    store = ResponseStore(folder(place.uri, place.credentials), notices.append)
    wanted = np.unique(from_arrow(pa.array(list(keys), pa.binary(16))))
    tables = list(store.read(store.lookup(wanted)))
    assert not notices, notices
    return {row["key"]: row["output"]["response"] for table in tables for row in table.to_pylist()}
