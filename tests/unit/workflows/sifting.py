# SPDX-License-Identifier: Apache-2.0
"""Rows that passed steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.dataset import Rows
from airflow_provider_raybatch.dataset.writer import DatasetWriter
from airflow_provider_raybatch.workflows.sift import Funnel, SiftStep, sift


def sifted(
    folder: Path, batches: Iterable[pa.RecordBatch], steps: Sequence[SiftStep], **options: Any
) -> tuple[Funnel, Rows, Rows]:
    """Return the funnel, and the kept and the dropped rows."""
    kept, dropped = DatasetWriter(str(folder / "kept")), DatasetWriter(str(folder / "dropped"))
    with kept, dropped:
        funnel = sift(batches, steps, kept, dropped, **options)
    return funnel, Rows(kept.result), Rows(dropped.result)
