# SPDX-License-Identifier: Apache-2.0
"""One finished dataset, and the ways to read it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.location import split_s3
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset.changes import Changes, compare
from airflow_provider_raybatch.dataset.errors import UsageError, needing, reading
from airflow_provider_raybatch.dataset.files import DatasetFiles
from airflow_provider_raybatch.dataset.rows import dead_letters, rows_at

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow as pa


class Dataset(DatasetFiles[BatchManifest]):
    """A committed, immutable dataset.

    :param manifest: what it holds.
    :param credentials: for ``s3://``; by default the environment's own identity.
    """

    def to_arrow(self) -> pa.Table:
        """All rows as one Arrow table, in the order of the dataset.

        :raises DatasetError: pyarrow is missing, a file is damaged, or the number of rows is not the
            manifest's.
        """
        with reading(self.manifest.uri):
            table = self.arrow_dataset().to_table()
        self.check_rows(table.num_rows)
        return table

    def duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A lazy DuckDB relation, to be queried or inserted from.

        Files in S3 are read through pyarrow, so DuckDB needs neither an extension nor credentials.

        :param connection: by default DuckDB's own default connection.
        :raises DatasetError: DuckDB (or for S3 pyarrow) is missing, or the number of rows is not the
            manifest's.
        """
        with needing("duckdb"):
            import duckdb
        on = duckdb if connection is None else connection
        remote = split_s3(self._folder.uri) is not None
        if remote and self.manifest.format == "parquet":
            relation = on.from_arrow(self.arrow_dataset())
        elif remote:
            # In memory: DuckDB and a lazy Arrow dataset of JSON wait for each other for ever.
            relation = on.from_arrow(self.to_arrow())
        elif self.manifest.format == "parquet":
            relation = on.read_parquet(self.files)
        else:
            # The stubs know single paths alone; DuckDB takes lists.
            relation = on.read_json(cast(str, self.files), format="newline_delimited")
        (rows,) = relation.aggregate("count(*)").fetchall()[0]
        self.check_rows(rows)
        return relation

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """All rows as one pandas DataFrame, in the order of the dataset.

        :param options: those of ``pyarrow.Table.to_pandas``, such as `types_mapper`.
        :raises DatasetError: pandas or pyarrow is missing, or as :meth:`to_arrow`.
        """
        with needing("pandas"):
            import pandas  # noqa: F401 - pyarrow's own error would not say what to install
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> polars.LazyFrame:
        """A Polars LazyFrame, which reads the columns and rows that its query needs; ``.collect()`` runs it.

        :raises DatasetError: Polars or pyarrow is missing, or the number of rows is not the manifest's.
        """
        with needing("polars"):
            import polars
        lazy = self.arrow_dataset()
        with reading(self.manifest.uri):
            self.check_rows(lazy.count_rows())
        return polars.scan_pyarrow_dataset(lazy)

    def dead_letters(self) -> pa.Table:
        """The failed rows as one Arrow table, in the order of the input.

        Its columns are `ordinal` (position in the input), `id` (with `id_column`), `step`, `reason`,
        `request`, `response` (only with step ``postprocess``) and `row`, a struct of the input columns. A
        column of the input that has values of several types is JSON text there.

        :raises DatasetError: pyarrow is missing, or the dead letters are gone, damaged or not as many as the
            manifest says.
        """
        return dead_letters(self.manifest, self.credentials)

    def sample(self, n: int, *, seed: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """`n` random good rows as an Arrow table, in the order of the dataset; all rows if it has no more.

        Reads only the row groups that hold them.

        :param n: number of rows, at least 0.
        :param seed: equal seeds give the same rows of the same dataset; by default they differ each time.
        :param columns: only these; by default all.
        :raises DatasetError: `n` is below 0, a column or pyarrow is missing, or a file is damaged.
        """
        if type(n) is not int or n < 0:
            raise UsageError(f"n: it must be a whole number of at least 0, but it is {shown(n)}.")
        places = random.Random(seed).sample(range(self.rows), min(n, self.rows))
        return rows_at(self, sorted(places), columns)

    def compare(
        self,
        previous: Dataset,
        *,
        id_column: str | None = None,
        response_column: str | None = None,
        limit: int = 1000,
    ) -> Changes:
        """What has changed since `previous`, row by row.

        Memory holds ids and digests of both datasets, a few hundred bytes a row, and the rows that are shown.

        :param previous: such as the same task's dataset of the night before.
        :param id_column: a column of both whose values name the rows; by default the jobs' own `id_column`,
            or else the rows' positions in the input.
        :param response_column: the column to compare; by default each job's own column of responses.
        :param limit: rows that the table has of each kind at most.
        :raises DatasetError: a column is missing, an id is missing or not unique, the two jobs had different
            id columns, pyarrow is missing, or a file is damaged.
        """
        return compare(self, previous, id_column, response_column, limit)
