# SPDX-License-Identifier: Apache-2.0
"""``raybatch rows``: the rows of a finished dataset, or its dead letters."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import islice
from typing import Any

from airflow_provider_raybatch.cli.places import absolute, dataset_at, s3_access
from airflow_provider_raybatch.cli.terminal import Row, print_rows
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.dataset import Dataset, DatasetError
from airflow_provider_raybatch.dataset.dead_letters import letters

_BATCH = 1024
_OF_DEAD_LETTERS = ("ordinal", "step", "reason", "row")
_LETTER = ("ordinal", "id", "step", "reason", "request", "response", "row")
"""Fields of a dead letter."""


def show_rows(options: Namespace) -> None:
    """Print rows as the options say."""
    if options.limit < 0:
        raise SpecError(f"limit: it must be 0, for all rows, or more, but it is {options.limit}.")
    dataset = dataset_at(absolute(options.dataset), options.aws_conn_id)
    counts = dataset.manifest.counts
    columns = options.columns and list(options.columns)
    if options.failed:
        found = _dead_letters(dataset, options.aws_conn_id, columns)
    else:
        found = _rows(dataset, options)
    first = columns or (_OF_DEAD_LETTERS if options.failed else _responses(dataset))
    shown = islice(found, options.limit or None)
    print_rows(shown, options.format, first)
    if options.format == "table":
        total, what = (counts.error, "failed row") if options.failed else (counts.dataset_rows, "row")
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


def _dead_letters(dataset: Dataset, aws_conn_id: str | None, columns: list[str] | None) -> Iterator[Row]:
    """The dead letters, or `columns` of them and of the rows in them."""
    of_rows = [column.name for column in dataset.manifest.columns]
    if columns and (unknown := set(columns) - {*_LETTER, *of_rows}):
        raise SpecError(
            f"columns: a dead letter has no {min(unknown)!r}; it has {_listed(list(_LETTER))}, and "
            "the columns of its row."
        )
    place = dataset.manifest.dead_letter_uri
    if place is None:
        return iter(())
    found = letters(dataset.manifest, s3_access(place, aws_conn_id))
    return (_chosen(letter, columns) for letter in found) if columns else found


def _chosen(letter: Row, columns: list[str]) -> Row:
    row = letter["row"] or {}  # without one where it could not be read
    return {name: letter[name] if name in letter else row.get(name) for name in columns}


def _responses(dataset: Dataset) -> list[str]:
    """What a table shows even where it has no room for all: the response, under its usual names."""
    return [column.name for column in dataset.manifest.columns if column.name.endswith("response")]


def _listed(names: list[Any]) -> str:
    more = "" if len(names) <= 10 else f" and {len(names) - 10:,} more"
    return f"{', '.join(map(repr, names[:10]))}{more}"
