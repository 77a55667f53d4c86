# SPDX-License-Identifier: Apache-2.0
"""``raybatch rows``: the rows of a finished dataset, or its dead letters."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from itertools import islice
from typing import Any

from airflow_provider_raybatch.cli.last_run import dataset_at
from airflow_provider_raybatch.cli.terminal import Row, print_rows
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.dataset import Dataset, DatasetError, s3_credentials
from airflow_provider_raybatch.dataset.dead_letters import letters

_BATCH = 1024
_OF_DEAD_LETTERS = ("ordinal", "step", "reason", "row")


def show_rows(options: Namespace) -> None:
    """Print rows as the options say."""
    if options.limit < 0:
        raise SpecError(f"limit: it must be 0, for all rows, or more, but it is {options.limit}.")
    place = options.dataset
    if "://" not in place:
        place = os.path.abspath(os.path.expanduser(place))  # noqa: PTH100, PTH111 - keeps symbolic links
    dataset = dataset_at(place, options.aws_conn_id)
    counts = dataset.manifest.counts
    found = _dead_letters(dataset, options.aws_conn_id) if options.failed else _rows(dataset, options)
    columns = options.columns and list(options.columns)
    if columns:
        found = _chosen(found, columns)
    first = columns or (_OF_DEAD_LETTERS if options.failed else _responses(dataset))
    shown = islice(found, options.limit or None)
    print_rows(shown, options.format, first)
    if options.format == "table":
        total, what = (counts.error, "failed row") if options.failed else (counts.ok, "row")
        print(f"{min(options.limit or total, total):,} of {count_of(total, what)} of {dataset.manifest.uri}")


def _rows(dataset: Dataset, options: Namespace) -> Iterator[Row]:
    source = dataset.arrow_dataset()
    if options.columns and (unknown := set(options.columns) - set(source.schema.names)):
        raise SpecError(
            f"columns: the dataset has no {min(unknown)!r}; it has {_listed(source.schema.names)}."
        )
    try:
        # Little is read for a few rows.
        size = min(options.limit or _BATCH, _BATCH)
        for batch in source.to_batches(columns=options.columns or None, batch_size=size, batch_readahead=0):
            yield from batch.to_pylist()
    except (ValueError, OSError) as error:  # of pyarrow, which has both for damage
        raise DatasetError(f"files: {dataset.manifest.uri} can't be read ({error}).") from error


def _dead_letters(dataset: Dataset, aws_conn_id: str | None) -> Iterator[Row]:
    place = dataset.manifest.dead_letter_uri
    return iter(()) if place is None else letters(dataset.manifest, s3_credentials(place, aws_conn_id))


def _chosen(rows: Iterator[Row], columns: list[str]) -> Iterator[Row]:
    for row in rows:
        yield {name: row.get(name) for name in columns}


def _responses(dataset: Dataset) -> list[str]:
    """What a table shows even where it has no room for all: the response, under its usual names."""
    return [column.name for column in dataset.manifest.columns if column.name.endswith("response")]


def _listed(names: list[Any]) -> str:
    more = "" if len(names) <= 10 else f" and {len(names) - 10:,} more"
    return f"{', '.join(map(repr, names[:10]))}{more}"
