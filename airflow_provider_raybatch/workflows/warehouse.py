# SPDX-License-Identifier: Apache-2.0
"""What warehouses ask about a finished dataset: where its files and partitions are, and how large."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from airflow_provider_raybatch.contract.location import s3_prefix
from airflow_provider_raybatch.dataset import Result
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.opening import open_files
from airflow_provider_raybatch.dataset.writer import folder_to_write


def copy_manifest(
    result: Result, folder: str, name: str = "copy", aws_conn_id: str | None = None
) -> dict[str, str]:
    """Write a manifest for Redshift's ``COPY ... MANIFEST``, which then loads these files, and all of them.

    :param folder: where ``<name>.json`` is written, such as the destination, never the dataset's `uri`.
    :returns: `bucket`, `key` and `uri` of the manifest.
    :raises UsageError: the dataset or `folder` is not in S3.
    """
    dataset = open_files(result, aws_conn_id).manifest
    for field, uri in (("result", dataset.uri), ("folder", folder)):
        if not s3_prefix(uri):
            raise UsageError(f"{field}: {uri!r} is not in S3, which alone COPY reads; name an s3:// one.")
    entries = [
        # COPY refuses Parquet files without their length.
        {"url": f"{dataset.uri}/{file.path}", "mandatory": True, "meta": {"content_length": file.bytes}}
        for file in dataset.files
        if file.rows
    ]
    place = folder_to_write(folder, aws_conn_id, "folder")
    place.write(f"{name}.json", json.dumps({"entries": entries}, indent=1).encode())
    parts = s3_prefix(place.uri)
    key = f"{parts['key_prefix']}{name}.json"
    return {"bucket": parts["bucket"], "key": key, "uri": f"s3://{parts['bucket']}/{key}"}


@dataclass(frozen=True)
class Partition:
    """Files that share the values of the partition columns.

    :param values: by column, as text; none for a dataset without partitions, which is one partition.
    :param uri: the folder that holds these files and nothing else.
    """

    values: dict[str, str]
    uri: str
    rows: int


def partitions(
    result: Result, more: Mapping[str, str] | None = None, aws_conn_id: str | None = None
) -> list[Partition]:
    """The partitions of a dataset, sorted.

    :param more: values that all of them have, such as the night, put in front.
    """
    dataset = open_files(result, aws_conn_id).manifest
    rows: dict[str, int] = {}
    for file in dataset.files:
        folder = file.path.rpartition("/")[0]
        rows[folder] = rows.get(folder, 0) + file.rows
    return [
        Partition({**(more or {}), **_values(folder)}, f"{dataset.uri}/{folder}".rstrip("/"), count)
        for folder, count in sorted(rows.items())
    ]


def _values(folder: str) -> dict[str, str]:
    pairs = (part.split("=", 1) for part in folder.split("/") if part)
    return {unquote(name): unquote(value) for name, value in pairs}


def athena_statement(table: str, found: Sequence[Partition]) -> str:
    """The `query` that makes partitions known to Athena; those that it knows stay as they are.

    :raises UsageError: there is none, or one has no value.
    """
    if not found or not all(one.values for one in found):
        raise UsageError("partitions: one has no value; give `more`, such as {'night': '2026-01-31'}.")
    lines = []
    for one in found:
        pairs = ", ".join(f"`{name}` = {_quoted(value)}" for name, value in one.values.items())
        lines.append(f"PARTITION ({pairs}) LOCATION {_quoted(one.uri + '/')}")
    return f"ALTER TABLE {table} ADD IF NOT EXISTS\n" + "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def glue_inputs(table: Mapping[str, Any], found: Sequence[Partition]) -> list[dict[str, Any]]:
    """`PartitionInputList` of Glue's ``batch_create_partition``, which takes 100 in a call.

    :param table: as `GlueCatalogHook.get_table` returns it; partitions are stored as it says.
    :raises UsageError: a partition has no value for one of the table's partition keys.
    """
    names = [key["Name"] for key in table["PartitionKeys"]]
    for one in found:
        if missing := [name for name in names if name not in one.values]:
            raise UsageError(f"partitions: {one.uri} has no value for {missing[0]!r}; give it as `more`.")
    return [
        {
            "Values": [one.values[name] for name in names],
            "StorageDescriptor": {**table["StorageDescriptor"], "Location": f"{one.uri}/"},
        }
        for one in found
    ]
