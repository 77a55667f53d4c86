# SPDX-License-Identifier: Apache-2.0
"""Drop exact and near duplicates: within a run, and of rows that earlier runs accepted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from airflow_provider_raybatch.workflows.accepted import Accepted, digest
from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.minhash import Shingles, signatures
from airflow_provider_raybatch.workflows.rows import require
from airflow_provider_raybatch.workflows.sift import Checked, Drop, joined_texts
from airflow_provider_raybatch.workflows.signature_index import SignatureIndex


class ExactDuplicates:
    """Drops a row with the same texts as an earlier row, compared by digest.

    Rules: ``exact_duplicate``, and ``accepted_earlier`` for a row of an earlier run.

    :param columns: columns that must all be equal; case and the kind of white space are ignored.
    :param id_column: names the other row in the reason.
    :param earlier: rows that earlier runs accepted, compared by these columns; default none.
    :raises WorkflowError: `earlier` was made from other columns.
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
    :raises WorkflowError: `threshold` is out of range, or `earlier` was made with other settings.
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
        raise WorkflowError(f"columns: {columns!r} is not a list of columns; write ['text'].")
    return list(columns)


def _ids_of(batch: pa.RecordBatch, column: str) -> list[str]:
    require(batch.schema, column, "id_column")
    return [str(one) for one in batch.column(column).to_pylist()]
