# SPDX-License-Identifier: Apache-2.0
"""Columns that folders name, as Hive, Spark and Athena write them: ``day=2026-01-31/`` above a file.

As in Spark, the folder's value replaces a column of the same name in the file, and types follow from the
values of all files: whole numbers, dates, else text.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from urllib.parse import unquote

import pyarrow as pa

from airflow_provider_raybatch.contract.hub_path import split_hub
from airflow_provider_raybatch.contract.layout import HIVE_NULL
from airflow_provider_raybatch.job.input import http
from airflow_provider_raybatch.job.input.listing import Listing

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

Partition = dict[str, pa.Scalar]
"""The columns that the folders above one file name, each with its value."""


def partitions(listing: Listing) -> list[Partition]:
    """The partition columns of each file, outermost folder first; none for files behind ``https://``."""
    named = [_named(file.uri) for file in listing.files]
    values: dict[str, list[str | None]] = {}
    for folders in named:
        for name, value in folders.items():
            values.setdefault(name, []).append(value)
    types = {
        name: _type_of([value for value in found if value is not None]) for name, found in values.items()
    }
    return [{name: _scalar(value, types[name]) for name, value in folders.items()} for folders in named]


def _named(uri: str) -> dict[str, str | None]:
    if http.is_url(uri):
        return {}
    at = split_hub(uri)
    path = at.path if at else uri.partition("://")[2].partition("/")[2] if "://" in uri else uri
    pairs = [folder.split("=", 1) for folder in path.split("/")[:-1] if "=" in folder[1:]]
    return {unquote(name): None if value == HIVE_NULL else unquote(value) for name, value in pairs}


def _type_of(values: Sequence[str]) -> pa.DataType:
    if not values:
        return pa.string()
    if all(_INTEGER.fullmatch(value) and -(2**63) <= int(value) < 2**63 for value in values):
        return pa.int64()
    try:
        are_dates = all(_DATE.fullmatch(value) and datetime.date.fromisoformat(value) for value in values)
    except ValueError:  # such as 2026-02-30
        are_dates = False
    return pa.date32() if are_dates else pa.string()


def _scalar(value: str | None, kind: pa.DataType) -> pa.Scalar:
    if value is None or pa.types.is_string(kind):
        return pa.scalar(value, kind)
    return pa.scalar(int(value) if pa.types.is_integer(kind) else datetime.date.fromisoformat(value), kind)
