# SPDX-License-Identifier: Apache-2.0
"""The frozen input, found by preflight and used by all later steps."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.input.survey import Chunk, Surveyed, cut

ROWS_PER_CHUNK = 4096
"""Size of a chunk that is only read, without requests to an engine."""


@dataclass(frozen=True)
class Source:
    """The frozen input, listed and counted once.

    :param columns: names of the input columns, in order; for JSONL those of the first rows.
    :param schema: Arrow types, as far as the source or its first rows show them.
    :param rows: rows of the input, `limit` applied.
    """

    listing: Listing
    surveyed: Surveyed
    columns: list[str]
    schema: pa.Schema
    rows: int

    def chunks(self, rows_per_chunk: int) -> list[Chunk]:
        """The input, cut; always the same rows whatever the size."""
        return cut(self.surveyed, rows_per_chunk, self.rows)
