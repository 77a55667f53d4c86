# SPDX-License-Identifier: Apache-2.0
"""What has changed from one finished dataset to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.dataset.errors import DatasetError, UsageError, reading
from airflow_provider_raybatch.dataset.rows import as_strings, letters, require, rows_at

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_raybatch.contract.manifest import BatchManifest
    from airflow_provider_raybatch.dataset.files import DatasetFiles

_BATCH_ROWS = 4096


@dataclass(frozen=True)
class Changes:
    """Rows by what has become of them; a row that failed has no response, so it counts as not there.

    With `chunk_tokens`, each chunk is a row, named by the row of the input and its number: ``7#0``.

    :param added: rows with a response only in the new dataset.
    :param removed: rows with a response only in the previous one.
    :param same: rows with equal responses in both.
    :param changed: rows with different responses.
    :param table: changed, added and removed rows as an Arrow table of text with the columns `id`, `change`,
        `previous` and `response`; of each kind the first ones.
    """

    added: int
    removed: int
    same: int
    changed: int
    table: pa.Table = field(repr=False)


def compare(
    new: DatasetFiles[BatchManifest],
    old: DatasetFiles[BatchManifest],
    id_column: str | None,
    response_column: str | None,
    limit: int,
) -> Changes:
    """See :meth:`Dataset.compare`."""
    if type(limit) is not int or limit < 0:
        raise UsageError(f"limit: it must be a whole number of at least 0, but it is {shown(limit)}.")
    named_by = id_column or _common_id_column(new, old)
    column, old_column = (response_column or one.manifest.response_column or "response" for one in (new, old))
    sides = _digests(new, named_by, column, "new"), _digests(old, named_by, old_column, "old")
    import pyarrow as pa
    import pyarrow.compute as pc

    both = sides[0].join(sides[1], "id", join_type="full outer")
    kinds = {
        "changed": both.filter(pc.fill_null(pc.not_equal(both["new"], both["old"]), False)),
        "added": both.filter(pc.is_null(both["old_at"])),
        "removed": both.filter(pc.is_null(both["new_at"])),
    }
    tables = []
    for kind, found in kinds.items():
        rows = found.sort_by("old_at" if kind == "removed" else "new_at").slice(0, limit)
        tables.append(
            pa.table({
                "id": rows["id"],
                "change": pa.array([kind] * rows.num_rows, pa.string()),
                "previous": _responses(old, rows["old_at"], old_column),
                "response": _responses(new, rows["new_at"], column),
            })
        )
    counts = {kind: found.num_rows for kind, found in kinds.items()}
    return Changes(**counts, same=both.num_rows - sum(counts.values()), table=pa.concat_tables(tables))


def _common_id_column(new: DatasetFiles[BatchManifest], old: DatasetFiles[BatchManifest]) -> str | None:
    """The column that names the rows of both; ``None`` where positions in the input do."""
    ours, theirs = new.manifest.id_column, old.manifest.id_column
    if ours == theirs:
        return ours
    named = [f"column {one!r}" if one else "their positions" for one in (ours, theirs)]
    raise UsageError(
        f"id_column: rows of this dataset are named by {named[0]}, and of the previous one by {named[1]}; "
        "give a column that both have."
    )


def _digests(
    dataset: DatasetFiles[BatchManifest], id_column: str | None, response_column: str, side: str
) -> pa.Table:
    """Of each row its id, a digest of its response (named `side`), and its place in the dataset.

    Digests bound the memory, whatever the length of the responses.
    """
    lazy = dataset.arrow_dataset()
    import pyarrow as pa
    import pyarrow.compute as pc

    require(lazy.schema.names, [response_column], "response_column")
    if id_column is not None:
        require(lazy.schema.names, [id_column], "id_column")
    ids, digests, chunks = [], [], []
    chunk_column = dataset.manifest.chunk_column
    columns = list(dict.fromkeys([response_column, *filter(None, [id_column, chunk_column])]))
    with reading(dataset.manifest.uri):
        bounded = {"batch_size": _BATCH_ROWS, "batch_readahead": 4, "fragment_readahead": 1}
        for batch in lazy.to_batches(columns=columns, **bounded):
            texts = as_strings(batch[response_column]).to_pylist()
            digests.append(pa.array(map(_digest, texts), pa.binary(16)))
            if id_column is not None:
                ids.append(as_strings(batch[id_column]))
            if chunk_column is not None:
                chunks.append(as_strings(batch[chunk_column]))
    found = pa.chunked_array(digests, pa.binary(16))
    dataset.check_rows(len(found))
    numbers = pa.chunked_array(chunks, pa.string())
    if id_column is None:
        ids = [pa.array(_positions(dataset, numbers.to_pylist()), pa.string())]
    named = pa.chunked_array(ids, pa.string())
    if chunk_column is not None:
        named = pc.binary_join_element_wise(named, numbers, "#")
    if id_column is not None:
        _check_ids(named, id_column, dataset)
    return pa.table({"id": named, side: found, f"{side}_at": pa.array(range(len(found)), pa.int64())})


def _digest(text: str | None) -> bytes:
    return hashlib.blake2b(b"" if text is None else b"=" + text.encode(), digest_size=16).digest()


def _check_ids(ids: pa.ChunkedArray, column: str, dataset: DatasetFiles[BatchManifest]) -> None:
    import pyarrow.compute as pc

    repeated = pc.count_distinct(ids, mode="only_valid").as_py() < len(ids) - ids.null_count
    if ids.null_count or repeated:
        why = "has a value more than once" if repeated else "has rows without a value"
        raise UsageError(
            f"id_column: {column!r} of {dataset.manifest.uri} {why}; name a column whose values tell the "
            "rows apart."
        )


def _positions(dataset: DatasetFiles[BatchManifest], chunks: Sequence[str]) -> list[str]:
    """The position in the input of each row; all chunks of a text have that of its row.

    :param chunks: their numbers; empty where each row is one of the input.
    """
    ordinals = _ordinals(dataset)
    if not chunks:
        return list(map(str, ordinals))
    places = accumulate(chunk == "0" for chunk in chunks)
    return [str(ordinals[place - 1]) for place in places]


def _ordinals(dataset: DatasetFiles[BatchManifest]) -> list[int]:
    """The positions of the good rows in the input: all but those of the failed ones.

    A dataset has its rows in their order, see :mod:`airflow_provider_raybatch.job.output.publish`.
    """
    counts = dataset.manifest.counts
    failed = {letter["ordinal"] for letter in letters(dataset.manifest, dataset.credentials)}
    found = [place for place in range(counts.input) if place not in failed]
    if len(found) != counts.ok:
        raise DatasetError(
            f"dead_letter_uri: {dataset.manifest.dead_letter_uri} has {count_of(len(failed), 'row')}, but "
            f"the manifest says {counts.error:,}, so positions in the input are unknown; give an id_column."
        )
    return found


def _responses(dataset: DatasetFiles[BatchManifest], places: pa.ChunkedArray, column: str) -> pa.ChunkedArray:
    """The responses at `places`, in their order; null where a row is not there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pc.unique(places.drop_null()).sort()
    texts = as_strings(rows_at(dataset, wanted.to_pylist(), [column])[column])
    return texts.take(pc.index_in(places, pa.array(wanted)))
