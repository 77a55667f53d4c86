# SPDX-License-Identifier: Apache-2.0
"""When the parts of a batch first held each answer, read from outside and without the code under test."""

from __future__ import annotations

import io
import json
import re

import pyarrow.parquet as pq

from ..places import Place

_PART = re.compile(r"^_raybatch/parts/.+\.parquet$")


def answered_at(place: Place) -> dict[str, float]:
    """Prompts of a dataset of chats, and when a part with the answer appeared (epoch seconds)."""
    found: dict[str, float] = {}
    for path, appeared in place.files().items():
        if _PART.match(path):
            table = pq.ParquetFile(io.BytesIO(place.read(path))).read(["ok", "input"])
            for ok, row in zip(table["ok"].to_pylist(), table["input"].to_pylist(), strict=True):
                if ok:
                    prompt = _prompt(row)
                    found[prompt] = min(appeared, found.get(prompt, appeared))
    return found


def _prompt(row: dict[str, object]) -> str:
    body = row["body"]
    document = json.loads(body) if isinstance(body, str) else body
    return str(document["messages"][-1]["content"])
