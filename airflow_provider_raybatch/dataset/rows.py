# SPDX-License-Identifier: Apache-2.0
"""Read rows of a finished dataset by their positions in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.dataset.errors import DatasetError, reading

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_raybatch.dataset.files import DatasetFiles


def rows_at(
    dataset: DatasetFiles[Any], places: Sequence[int], columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows at `places`, which ascend.

    Of Parquet files only the row groups that hold them are read; of JSONL, whole files.

    :raises DatasetError: the dataset lacks a column, or a file is damaged.
    """
    lazy = dataset.arrow_dataset()
    import pyarrow as pa

    names = list(lazy.schema.names if columns is None else columns)
    require(lazy.schema.names, names, "columns")
    schema = pa.schema([lazy.schema.field(name) for name in names])
    if not places:
        return schema.empty_table()
    fragments = {fragment.path: fragment for fragment in lazy.get_fragments()}
    first, tables = 0, list[pa.Table]()
    with reading(dataset.manifest.uri):
        for file in dataset.manifest.files:
            inside = _within(places, first, file.rows)
            first += file.rows
            if inside:
                tables += _taken(fragments[file.path], inside, lazy.schema, names)
        return pa.concat_tables(tables)


def as_strings(values: Any) -> Any:
    """An Arrow array as text; what Arrow can't cast, as Python writes it."""
    import pyarrow as pa

    try:
        return values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([None if one is None else str(one) for one in values.to_pylist()], pa.string())


def require(there: Sequence[str], wanted: Sequence[str], field: str) -> None:
    """Check that columns exist.

    :param field: the argument that the error names.
    :raises DatasetError: one does not.
    """
    for name in wanted:
        if name not in there:
            raise DatasetError(
                f"{field}: {name!r} is not a column of the dataset, which has {', '.join(there)}; correct "
                "the name.",
                FailureClass.USER_ERROR,
            )


def _taken(fragment: Any, places: list[int], schema: pa.Schema, columns: list[str]) -> Iterator[pa.Table]:
    """The rows of a file, a row group at a time."""
    import pyarrow as pa

    if not hasattr(fragment, "row_groups"):
        yield fragment.scanner(schema=schema, columns=columns).take(pa.array(places))
        return
    first = 0
    for number, group in enumerate(fragment.row_groups):
        inside = _within(places, first, group.num_rows)
        first += group.num_rows
        if inside:
            part = fragment.subset(row_group_ids=[number])
            yield part.scanner(schema=schema, columns=columns).take(pa.array(inside))


def _within(places: Sequence[int], first: int, count: int) -> list[int]:
    """Those of `places` that lie in `count` rows from `first` on, from there."""
    return [
        place - first for place in places[bisect_left(places, first) : bisect_left(places, first + count)]
    ]
