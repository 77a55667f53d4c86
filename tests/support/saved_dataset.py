# SPDX-License-Identifier: Apache-2.0
"""Folders as ``save_to_disk`` of Hugging Face ``datasets`` 5.2 writes them, without the library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.storage.folder import Folder


def with_features(table: pa.Table, features: Mapping[str, Any]) -> pa.Table:
    """Return the table with what ``datasets`` notes of its columns in Arrow and Parquet files."""
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def as_stream(table: pa.Table, rows_per_batch: int = 1000) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return bytes(sink.getvalue())


def save_to_disk(place: Folder, path: str, shards: Sequence[pa.Table], **state: Any) -> None:
    """Save a dataset.

    :param state: other values of ``state.json``.
    """
    names = [f"data-{number:05d}-of-{len(shards):05d}.arrow" for number in range(len(shards))]
    for name, table in zip(names, shards, strict=True):
        place.write(f"{path}/{name}", as_stream(table))
    found = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0" * 16,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": "train",
    }
    place.write(f"{path}/state.json", json.dumps({**found, **state}, indent=2).encode())
    place.write(f"{path}/dataset_info.json", b'{"features": {}}')
