# SPDX-License-Identifier: Apache-2.0
"""Count the tokens of texts before any inference, for a funnel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from airflow_provider_raybatch.workflows.sift import text_column, with_column


def approximate_tokens(text: str) -> int:
    """A quarter of the UTF-8 bytes: about right for English, without a tokenizer."""
    return len(text.encode()) // 4


def count_tokens(
    batches: Iterable[pa.RecordBatch],
    column: str = "text",
    into: str = "tokens",
    count: Callable[[str], int] = approximate_tokens,
) -> Iterator[pa.RecordBatch]:
    """The batches with one more column, for the `tokens` of :func:`~.sift.sift`.

    :param column: column of the text; null has 0 tokens.
    :param into: name of the new column.
    :param count: tokens of a text, such as ``lambda text: len(tokenizer.encode(text))``.
    :raises WorkflowError: there is no such text column, or `into` is a column already.
    """
    for batch in batches:
        counts = [count(text or "") for text in text_column(batch, column)]
        yield with_column(batch, into, pa.array(counts, pa.int64()))
