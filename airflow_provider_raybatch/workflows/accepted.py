# SPDX-License-Identifier: Apache-2.0
"""Index of the rows that earlier runs accepted: their digests and signatures, one small file per run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.dataset import s3_credentials
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.files import arrow_filesystem
from airflow_provider_raybatch.dataset.opening import Rows
from airflow_provider_raybatch.dataset.rows import require
from airflow_provider_raybatch.dataset.writer import folder_to_write
from airflow_provider_raybatch.job.input.table import parquet_file
from airflow_provider_raybatch.storage.folder import Folder, folder
from airflow_provider_raybatch.workflows.minhash import (
    ALGORITHM,
    PERMUTATIONS,
    Shingles,
    Signatures,
    signatures,
)
from airflow_provider_raybatch.workflows.sift import joined_texts

_DIGEST_BYTES = 16
_MADE_BY = b"raybatch"


def digest(text: str) -> bytes:
    """Digest of a text, ignoring case and the kind and amount of white space."""
    return hashlib.blake2b(" ".join(text.casefold().split()).encode(), digest_size=_DIGEST_BYTES).digest()


class Accepted:
    """Rows that other runs accepted, to find duplicates of them.

    :param index: folder of the index, local or ``s3://``; may not exist yet.
    :param night: name of this run, unique among runs, such as ``{{ ds }}``. Rows that an earlier attempt of
        the same run accepted are ignored, so that a run can be repeated.
    :ivar nights: names of the runs in the index.
    :raises UsageError: a file of the index can't be read, or two runs were indexed with different
        settings.
    """

    def __init__(self, index: str, night: str, aws_conn_id: str | None = None) -> None:
        there = folder(index, s3_credentials(index, aws_conn_id))
        own = _file_name(night)
        self.digests: list[bytes] = []
        self.nights: list[str] = []
        self._starts: list[int] = []
        self._ids: list[pa.ChunkedArray] = []
        blocks: list[Signatures] = [np.empty((0, PERMUTATIONS), np.uint8)]
        self._made_by: dict[str, object] | None = None
        self._index = index
        for entry in there.list():
            if entry.path == own or not entry.path.endswith(".parquet"):
                continue
            table = self._read(there, entry.path)
            self._starts.append(len(self.digests))
            self.nights.append(unquote(entry.path.removesuffix(".parquet")))
            self.digests += table["digest"].to_pylist()
            self._ids.append(table["id"])
            blocks.append(
                np.frombuffer(b"".join(table["signature"].to_pylist()), np.uint8).reshape(-1, PERMUTATIONS)
            )
        self.signatures = np.concatenate(blocks)

    def __len__(self) -> int:
        return len(self.digests)

    def name(self, number: int) -> tuple[str, str]:
        """Id and run of a row."""
        at = int(np.searchsorted(self._starts, number, "right")) - 1
        return self._ids[at][number - self._starts[at]].as_py(), self.nights[at]

    def check(self, columns: Sequence[str], shingles: Shingles | None = None) -> None:
        """Check that the index was made with these settings.

        :raises UsageError: it was made with others.
        """
        if self._made_by is None:
            return
        wanted = _made_by(columns, shingles or Shingles())
        for field in ("columns", "shingles", "algorithm") if shingles else ("columns",):
            if self._made_by[field] != wanted[field]:
                raise UsageError(
                    f"earlier: the index {self._index} has {field} {self._made_by[field]!r}, and here "
                    f"they are {wanted[field]!r}; use the same, or another folder for the index."
                )

    def _read(self, place: Folder, path: str) -> pa.Table:
        try:
            table = pq.read_table(
                path, filesystem=arrow_filesystem(place), page_checksum_verification=True, use_threads=False
            )
            made_by = json.loads(table.schema.metadata[_MADE_BY])
        except (pa.ArrowInvalid, OSError, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"index: {path!r} in {self._index} is not the index of a run ({error}); remove it, "
                "and index that run again."
            ) from error
        if self._made_by not in (None, made_by):
            raise UsageError(
                f"index: {path!r} in {self._index} was made with {made_by}, and another run with "
                f"{self._made_by}; index one of them again."
            )
        self._made_by = made_by
        return table


def remember(
    accepted: Rows,
    index: str,
    night: str,
    columns: Sequence[str],
    id_column: str,
    shingles: Shingles | None = None,
    aws_conn_id: str | None = None,
) -> int:
    """Add the published rows of a run to the index, and return how many; a repeated run replaces its file.

    :param night: see :class:`Accepted`.
    :param columns: columns whose texts are compared.
    :param id_column: column that names a row in the reasons of later runs.
    :raises UsageError: a column is missing, or `index` is not the location of a folder.
    """
    place = folder_to_write(index, aws_conn_id, "index")
    require(accepted.schema.names, [id_column], "id_column")
    shingles = shingles or Shingles()
    schema = pa.schema(
        [("id", pa.string()), ("digest", pa.binary(_DIGEST_BYTES)), ("signature", pa.binary(PERMUTATIONS))],
        metadata={_MADE_BY: json.dumps(_made_by(columns, shingles))},
    )

    def indexed(batch: pa.RecordBatch) -> pa.Table:
        ids = [str(one) for one in batch.column(id_column).to_pylist()]
        texts = joined_texts(batch, columns)
        of_index = [ids, map(digest, texts), (row.tobytes() for row in signatures(texts, shingles))]
        return pa.table(
            [pa.array(one, type) for one, type in zip(of_index, schema.types, strict=True)], schema
        )

    batches = accepted.batches(list(dict.fromkeys([id_column, *columns])))
    place.write(_file_name(night), parquet_file(map(indexed, batches), schema))
    return accepted.count


def _made_by(columns: Sequence[str], shingles: Shingles) -> dict[str, object]:
    return {"columns": list(columns), "shingles": [shingles.kind, shingles.size], "algorithm": ALGORITHM}


def _file_name(night: str) -> str:
    if not night.strip():
        raise UsageError("night: it is empty; give the run a name, such as '{{ ds }}'.")
    return f"{quote(night, safe='')}.parquet"
