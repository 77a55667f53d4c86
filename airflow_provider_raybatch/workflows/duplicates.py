# SPDX-License-Identifier: Apache-2.0
"""Drop exact, near and semantic duplicates: within a run, and of rows that earlier runs accepted.

Texts that mean the same have near vectors, those of a batch inference with ``model_task="embed"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.opening import Rows
from airflow_provider_raybatch.dataset.rows import require
from airflow_provider_raybatch.workflows.accepted import Accepted, digest
from airflow_provider_raybatch.workflows.minhash import Shingles, SignatureIndex, signatures
from airflow_provider_raybatch.workflows.sift import Checked, Drop, joined_texts

Vectors: TypeAlias = npt.NDArray[np.float32]
_BLOCK = 16_384
"""Kept vectors that are compared at once, with `_AT_ONCE` new ones."""
_AT_ONCE = 256


class ExactDuplicates:
    """Drops a row with the same texts as an earlier row, compared by digest.

    Rules: ``exact_duplicate``, and ``accepted_earlier`` for a row of an earlier run.

    :param columns: columns that must all be equal; case and the kind of white space are ignored.
    :param id_column: names the other row in the reason.
    :param earlier: rows that earlier runs accepted, compared by these columns; default none.
    :raises UsageError: `earlier` was made from other columns.
    """

    def __init__(
        self,
        columns: Sequence[str],
        id_column: str,
        earlier: Accepted | None = None,
        name: str = "exact_duplicates",
    ) -> None:
        self.name = name
        self._columns, self._id = _checked_columns(columns), id_column
        self._ids = _Ids(earlier)
        if earlier is not None:
            earlier.check(self._columns)
        self._seen = {one: number for number, one in enumerate(earlier.digests)} if earlier else {}

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        ids = _ids_of(batch, self._id)
        drops: list[Drop | None] = []
        for row, text in enumerate(joined_texts(batch, self._columns)):
            key = digest(text)
            number = self._seen.setdefault(key, len(self._ids))
            if number == len(self._ids):
                self._ids.append(ids[row])
                drops.append(None)
            else:
                drops.append(self._ids.drop("exact_duplicate", number, "its text equals that of"))
        return Checked(batch, drops)


class NearDuplicates:
    """Drops a row whose text is similar to that of an earlier row that was kept, by MinHash.

    Rules: ``near_duplicate``, and ``similar_to_accepted`` for a row of an earlier run.

    :param columns: columns whose texts are joined and compared.
    :param id_column: names the other row in the reason.
    :param threshold: least estimated Jaccard similarity of the shingles of two duplicates, 0.5 to 1.
    :param shingles: what is compared; see :class:`Shingles`.
    :param earlier: rows that earlier runs accepted, indexed with the same columns and shingles; default none.
    :raises UsageError: `threshold` is out of range, or `earlier` was made with other settings.
    """

    def __init__(
        self,
        columns: Sequence[str],
        id_column: str,
        threshold: float = 0.8,
        shingles: Shingles | None = None,
        earlier: Accepted | None = None,
        name: str = "near_duplicates",
    ) -> None:
        self.name = name
        self._columns, self._id = _checked_columns(columns), id_column
        self._shingles = shingles or Shingles()
        self._index = SignatureIndex(threshold)
        self._ids = _Ids(earlier)
        if earlier is not None:
            earlier.check(self._columns, self._shingles)
            self._index.add(earlier.signatures)

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        ids = _ids_of(batch, self._id)
        found = self._index.keep_new(signatures(joined_texts(batch, self._columns), self._shingles))
        drops: list[Drop | None] = []
        for name, match in zip(ids, found, strict=True):
            if match is None:
                self._ids.append(name)
                drops.append(None)
            else:
                number, similarity = match
                clause = f"its similarity is {similarity:.2f} to"
                drops.append(self._ids.drop("near_duplicate", number, clause))
        return Checked(batch, drops)


class _Ids:
    """Names of kept rows by number: first the rows of earlier runs."""

    def __init__(self, earlier: Accepted | None) -> None:
        self._earlier = earlier
        self._first = len(earlier) if earlier is not None else 0
        self._own: list[str] = []

    def __len__(self) -> int:
        return self._first + len(self._own)

    def append(self, name: str) -> None:
        self._own.append(name)

    def drop(self, rule: str, number: int, clause: str) -> Drop:
        if number >= self._first:
            return Drop(rule, f"{clause} {self._own[number - self._first]!r}")
        assert self._earlier is not None
        name, night = self._earlier.name(number)
        rule = "accepted_earlier" if rule == "exact_duplicate" else "similar_to_accepted"
        return Drop(rule, f"{clause} {name!r} of {night!r}")


def _checked_columns(columns: Sequence[str]) -> list[str]:
    if isinstance(columns, str) or not columns:
        raise UsageError(f"columns: {columns!r} is not a list of columns; write ['text'].")
    return list(columns)


def _ids_of(batch: pa.RecordBatch, column: str) -> list[str]:
    require(batch.schema.names, [column], "id_column")
    return [str(one) for one in batch.column(column).to_pylist()]


class SemanticDuplicates:
    """Drops a row whose vector has nearly the direction of an earlier row's that was kept.

    Each row is compared with all that were kept, so the time grows with their square: 100,000 vectors of 384
    numbers take minutes and 150 MB. Rules: ``no_vector``, ``semantic_duplicate``, and ``similar_to_accepted``
    for a row of `earlier`.

    :param column: vectors, of one size.
    :param id_column: names the other row in the reason.
    :param threshold: least cosine of two duplicates, above 0 and at most 1. What is alike depends on the
        model: look at some pairs.
    :param earlier: rows that earlier runs kept, with the same two columns; default none.
    :raises UsageError: `threshold` is out of range, a column is missing, or it holds no vectors.
    """

    def __init__(
        self,
        column: str = "embedding",
        id_column: str = "id",
        threshold: float = 0.95,
        earlier: Rows | None = None,
        name: str = "semantic_duplicates",
    ) -> None:
        if not 0 < threshold <= 1:
            raise UsageError(f"threshold: {threshold} is not a cosine above 0 and at most 1; try 0.95.")
        self.name = name
        self._column, self._id, self._threshold = column, id_column, threshold
        self._kept = _Kept()
        self._ids: list[str] = []
        for batch in earlier.batches([id_column, column]) if earlier is not None else ():
            valid = batch.filter(pc.is_valid(batch.column(column)))
            self._kept.add(self._vectors(valid))
            self._ids += _ids_of(valid, self._id)
        self._earlier = len(self._ids)

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        names, has_vector = _ids_of(batch, self._id), pc.is_valid(self._lists(batch)).to_pylist()
        vectors = self._vectors(batch.filter(pa.array(has_vector, pa.bool_())))
        matches = iter(
            self._keep_new(vectors, [name for name, has in zip(names, has_vector, strict=True) if has])
        )
        missing = Drop("no_vector", f"{self._column} has no vector")
        return Checked(batch, [next(matches) if has else missing for has in has_vector])

    def _keep_new(self, vectors: Vectors, names: list[str]) -> list[Drop | None]:
        """What becomes of each row; those that stay are compared with all later ones."""
        drops: list[Drop | None] = []
        for start in range(0, len(vectors), _AT_ONCE):
            some = vectors[start : start + _AT_ONCE]
            nearest, likeness = self._kept.nearest(some)
            among, new = some @ some.T, list[int]()
            for row, own in enumerate(among):
                if new:
                    best = int(own[new].argmax())
                    if own[new[best]] > likeness[row]:
                        likeness[row], nearest[row] = own[new[best]], len(self._ids) - len(new) + best
                if likeness[row] >= self._threshold:
                    drops.append(self._drop(int(nearest[row]), float(likeness[row])))
                else:
                    new.append(row)
                    self._ids.append(names[start + row])
                    drops.append(None)
            self._kept.add(some[new])
        return drops

    def _drop(self, number: int, likeness: float) -> Drop:
        rule = "semantic_duplicate" if number >= self._earlier else "similar_to_accepted"
        return Drop(rule, f"its cosine with {self._ids[number]!r} is {likeness:.2f}")

    def _lists(self, batch: pa.RecordBatch) -> pa.Array:
        require(batch.schema.names, [self._column], "column")
        column = batch.column(self._column)
        kind = column.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not is_list or not pa.types.is_floating(kind.value_type):
            raise UsageError(
                f"column: {self._column!r} holds {kind} and not vectors; name that of a job with model_task "
                "'embed'."
            )
        return column

    def _vectors(self, batch: pa.RecordBatch) -> Vectors:
        """Of length 1, all of them valid."""
        lists = self._lists(batch)
        numbers = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
        sizes = pc.unique(pc.list_value_length(lists)).to_pylist()
        known = [self._kept.size] if self._kept.size else []
        if len(lists) and len({*sizes, *known}) > 1:
            raise UsageError(
                f"column: {self._column!r} holds vectors of several sizes; use one model for all."
            )
        vectors = (
            numbers.reshape(len(lists), -1) if len(lists) else np.empty((0, self._kept.size), np.float32)
        )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


class _Kept:
    """Kept vectors by number, in blocks."""

    def __init__(self) -> None:
        self._blocks: list[Vectors] = []

    @property
    def size(self) -> int:
        """Numbers of a vector; 0 while there is none."""
        return self._blocks[0].shape[1] if self._blocks else 0

    def add(self, vectors: Vectors) -> None:
        if self._blocks and len(self._blocks[-1]) + len(vectors) <= _BLOCK:
            self._blocks[-1] = np.concatenate((self._blocks[-1], vectors))
        elif len(vectors):
            self._blocks.append(vectors)

    def nearest(self, vectors: Vectors) -> tuple[npt.NDArray[np.int64], Vectors]:
        """For each vector the number of the nearest, and their cosine; -1 where there is none."""
        number: npt.NDArray[np.int64] = np.full(len(vectors), -1)
        likeness: Vectors = np.full(len(vectors), -1, np.float32)
        first = 0
        for block in self._blocks:
            found = vectors @ block.T
            best = found.argmax(axis=1)
            values = found[np.arange(len(vectors)), best]
            is_better = values > likeness
            number[is_better], likeness[is_better] = first + best[is_better], values[is_better]
            first += len(block)
        return number, likeness
