# SPDX-License-Identifier: Apache-2.0
"""Inputs and the left-overs of earlier attempts: parts, duplicates, a checkpoint and a response store."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from attempt import ROWS_PER_PART, Attempt
from places import CHECKPOINT, INPUT, STORE, Place

ROWS_PER_FILE = 250_000
RAY_ROWS_PER_CHECKPOINT = 100_000
SUBMISSIONS = 20
STORED = 200_000
STATES = ("whole", "worn", "frayed", "stopped")


def prepare(place: Place, rows: int, state: str) -> None:
    """Write an input of `rows` rows, and the state in which both systems have finished nearly all of them."""
    (place.local / INPUT).mkdir(parents=True)
    (place.local / CHECKPOINT).mkdir()
    for first in range(0, rows, ROWS_PER_FILE):
        ids = np.arange(first, min(first + ROWS_PER_FILE, rows))
        asks = ids if state == "whole" else np.where(ids % 100 == 1, ids - 1, ids)
        table = pa.table({"id": ids, "text": [f"row {number}" for number in asks]})
        file = place.local / INPUT / f"{first:010d}.parquet"
        pq.write_table(table, file)
        if place.endpoint:
            place.folder(INPUT).write(file.name, file.read_bytes())
    for first in range(0, rows, RAY_ROWS_PER_CHECKPOINT):
        ids = np.arange(first, min(first + RAY_ROWS_PER_CHECKPOINT, rows - 1))
        pq.write_table(pa.table({"id": ids}), place.local / CHECKPOINT / f"{first:010d}.parquet")
    attempt = Attempt(place, submission=0)
    _write_parts(attempt, rows, state)
    _fill_store(place)


def _write_parts(attempt: Attempt, rows: int, state: str) -> None:
    from airflow_provider_raybatch.job.parts import part as parts
    from airflow_provider_raybatch.job.request.key_array import KEY
    from airflow_provider_raybatch.job.tasks.generate import output_type

    kind = output_type(False)
    stop = rows * 3 // 4 if state == "stopped" else rows - 1
    for number, first in enumerate(range(0, stop, ROWS_PER_PART)):
        ordinals = np.arange(first, min(first + ROWS_PER_PART, stop))
        if state != "whole" and number % 10 == 1:
            ordinals = np.delete(ordinals, len(ordinals) // 2)
        size = len(ordinals)
        ok = np.full(size, True)
        failed = state == "frayed" or (state != "whole" and number % 10 == 2)
        ok[size // 2] = not failed
        text = np.char.add("row ", ordinals.astype(str))
        output = {
            "response": text,
            "finish_reason": ["stop"] * size,
            "input_tokens": np.full(size, 2),
            "cached_tokens": np.zeros(size, np.int64),
            "output_tokens": np.full(size, 2),
        }
        arrays = {
            "ordinal": pa.array(ordinals, pa.uint64()),
            "ok": pa.array(ok),
            "key": pa.array([int(ordinal).to_bytes(16, "big") for ordinal in ordinals], KEY),
            "id": pa.nulls(size, pa.string()),
            "origin": pa.array(["generated"] * size),
            "paid_by": pa.nulls(size, pa.string()),
            "failure": pa.nulls(size, parts.FAILURE),
            "output": pa.StructArray.from_arrays(
                [pa.array(output[field.name], field.type) for field in kind], fields=list(kind)
            ),
        }
        submission = 0 if state == "whole" else number % SUBMISSIONS
        driver = f"{attempt.run_folder}/raybatch-benchmark-{submission}~00000000"
        columns = pa.table({"id": ordinals, "text": text})
        parts.write_arrays(attempt.job.folder, f"{driver}/{number:08d}", columns, arrays)


def _fill_store(place: Place) -> None:
    from airflow_provider_raybatch.job.request.key_array import KEY
    from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
    from airflow_provider_raybatch.job.tasks.generate import output_type

    random = np.random.default_rng(0)
    keys = pa.array([random.bytes(16) for _ in range(STORED)], KEY)
    row = {
        "response": "Manufacture of machinery",
        "finish_reason": "stop",
        "input_tokens": 13,
        "cached_tokens": 0,
        "output_tokens": 4,
        "completions": [],
    }
    table = pa.table({"key": keys, "output": pa.array([row] * STORED, output_type(True))})
    ResponseStore(place.folder(STORE), print).add("raybatch-other-0", [table])
