# SPDX-License-Identifier: Apache-2.0
"""Lines without an answer when their batch ends early: failed rows in parts of their own.

So they take the way of all failed rows, and a driver that dies meanwhile is resumed by the next one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.openai_batch import CUSTOM_ID
from airflow_provider_raybatch.contract.run_numbers import EarlyEnd
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK, Source
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.ledger import RowMask, add_up
from airflow_provider_raybatch.job.parts.part import Part, listed
from airflow_provider_raybatch.job.row import RowFailure, RowOutcome
from airflow_provider_raybatch.job.work import Job, work

_TEXT = r'"(?:[^"\\]|\\.)*"'
_TEXT_OR_BRACKET = re.compile(rf"{_TEXT}|[{{}}\[\]]")
_TEXT_OF_KEY = re.compile(rf"\s*:\s*({_TEXT})")


def custom_id_in(text: str) -> str | None:
    """The id in a line that is not JSON, as far as it is there; what its body has may be another line's."""
    depth = 0
    for found in _TEXT_OR_BRACKET.finditer(text):
        if found[0] in ("{", "["):
            depth += 1
        elif found[0] in ("}", "]"):
            depth -= 1
        elif depth == 1 and found[0] == f'"{CUSTOM_ID}"':
            value = _TEXT_OF_KEY.match(text, found.end())
            return None if value is None else _name(value[1])
    return None


def _name(written: str) -> str | None:
    try:
        name = json.loads(written)
        name.encode()  # half of a surrogate pair is not text
    except ValueError:
        return None
    return name if name and "\ufffd" not in name else None  # which stands for bytes that are not text


_REASONS: Mapping[str, str] = {
    "cancelled": "This request was not executed before the batch was cancelled.",
    "expired": "This request could not be executed before the completion window expired.",
    "limit_reached": "This request was not executed before the batch had used up a limit of its model.",
}
_NAMES = tuple(f"{ending}-" for ending in get_args(EarlyEnd))


def unanswered_error(step: str) -> dict[str, str] | None:
    """The error of a line without an answer, ``None`` for a row that failed in another step."""
    return {"code": f"batch_{step}", "message": _REASONS[step]} if step in _REASONS else None


def is_unanswered(part: Part) -> bool:
    """Whether a part has rows without an answer."""
    return part.path.rpartition("/")[2].startswith(_NAMES)


@dataclass(frozen=True)
class Finished:
    """The rows that need nothing any more.

    :param parts: with all of them.
    :param good: how many have a good answer, and `failed` how many a failure.
    :param rows: which they are, those among them that an earlier driver has noted as without an answer.
    """

    parts: tuple[Part, ...]
    good: int
    failed: int
    rows: RowMask


def finished(job: Job, source: Source) -> Finished:
    """Look up what all drivers of the job's input have written.

    :raises StorageError: the parts can't be listed or read.
    """
    found = listed(job.folder.list(job.run_folder))
    asked = [part for part in found if not is_unanswered(part)]
    answered = add_up(job.folder, asked, source.rows)
    noted = add_up(job.folder, [part for part in found if is_unanswered(part)], source.rows)
    failed = answered.failures > 0
    return Finished(
        (*answered.parts, *noted.parts),
        answered.rows,
        int(np.count_nonzero(failed)),
        answered.good | failed | (noted.failures > 0),
    )


def write_unanswered(job: Job, source: Source, answered: RowMask, ending: EarlyEnd) -> list[Part]:
    """Write the rows that are not `answered`, a chunk of the input at a time, with their `custom_id` alone.

    :raises StorageError: the source can't be read, or a part can't be written.
    """
    reader = Reader(job.listing, [CUSTOM_ID], job.credentials)
    failure = RowFailure(ending, _REASONS[ending])
    written: list[Part] = []
    for item in work(source, ROWS_PER_CHUNK, answered):
        positions = item.positions
        rows = reader.rows(item.chunk, reader.content(item.chunk), positions).rows
        ids = [_custom_id(row) for row in rows]
        outcomes = [
            RowOutcome(item.chunk.ordinal + position, failure, row_id=name)
            for position, name in zip(positions, ids, strict=True)
        ]
        stem = f"{job.part_folder}/{ending}-{item.chunk.ordinal:012d}"
        columns = pa.table({CUSTOM_ID: pa.array(ids, pa.string())})
        written += parts.write_all(job.folder, stem, columns, outcomes, job.task)
    return written


def _custom_id(row: dict[str, Any] | BadRow) -> str | None:
    return custom_id_in(row.text) if isinstance(row, BadRow) else row.get(CUSTOM_ID)
