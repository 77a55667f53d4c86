# SPDX-License-Identifier: Apache-2.0
"""Answers of equal requests: rows get them out of the file that has them, and are not asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.job.input.table import one_array
from airflow_provider_raybatch.job.parts.part import Origin, Part, read_columns
from airflow_provider_raybatch.job.parts.reading import DamagedPartError, RecentReads
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.response_store import folder_of_store
from airflow_provider_raybatch.job.reuse.store.data import StoredFile
from airflow_provider_raybatch.job.reuse.store.files import UnusableError
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.work import Job

_COLUMNS = ("key", "ok", "failure", "output", "paid_by")


@dataclass(frozen=True)
class SharedAnswer:
    """The answer to an equal request, as a row's result.

    :param outputs: as parts of the step have them; `place` is that of the answer.
    :param origin: where it comes from.
    :param paid_by: submission that has paid for it; ``None`` for the job's own.
    """

    outputs: pa.StructArray
    place: int
    origin: Origin = "duplicate"
    paid_by: str | None = None
    has_special_tokens: ClassVar[bool] = False
    truncated_prompt_tokens: ClassVar[int] = 0


def shared_outputs(rows: Sequence[Any]) -> pa.StructArray:
    """The outputs of rows whose results are shared answers to one step."""
    return pa.concat_arrays([row.result.outputs.slice(row.result.place, 1) for row in rows])


@dataclass(frozen=True)
class _Read:
    """A file's answers, and their keys in order, with the place of each."""

    table: pa.Table
    outputs: pa.StructArray
    origin: Origin
    payer: str
    keys: Keys
    places: npt.NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.table.nbytes + self.outputs.nbytes + self.keys.nbytes + self.places.nbytes)

    def answer(self, key: bytes) -> SharedAnswer | RowFailure | None:
        """See :meth:`SharedAnswers.of`."""
        wanted = np.frombuffer(key, "S16")
        at = int(np.asarray(np.searchsorted(self.keys, wanted))[0])
        if at == len(self.keys) or self.keys[at] != wanted[0]:
            return None
        place = int(self.places[at])
        row = self.table.slice(place, 1).drop_columns("output").to_pylist()[0]
        if row.get("ok", True):
            return SharedAnswer(self.outputs, place, self.origin, row.get("paid_by") or self.payer)
        return RowFailure(row["failure"]["step"].rpartition(".")[2], row["failure"]["reason"])


class SharedAnswers:
    """Reads answers out of parts and out of a response store.

    :param job: with the steps whose answers these are.
    """

    def __init__(self, job: Job) -> None:
        self._folder = job.folder
        self._store = folder_of_store(job.spec, job.credentials)
        self._tasks = job.tasks
        self._own = job.run_folders
        self._read = RecentReads[_Read](lambda read: read.nbytes)

    def of(self, step: int, place: Part | StoredFile, key: bytes) -> SharedAnswer | RowFailure | None:
        """The answer to a request, or why it has none; ``None`` where the file can't say.

        :param step: number of the step that asks it.
        """
        read = self._read.get((place.path, step), lambda: self._opened(step, place))
        return None if read is None else read.answer(key)

    def _opened(self, step: int, place: Part | StoredFile) -> _Read | None:
        try:
            if isinstance(place, Part):
                table = read_columns(self._folder, place, _COLUMNS)
                origin: Origin = "duplicate" if place.path.startswith(self._own) else "carried"
                payer = place.submission_id
            else:
                assert self._store is not None
                table, origin, payer = place.read(self._store), "stored", place.paid_by
        except (DamagedPartError, UnusableError):
            return None
        task = self._tasks[step]
        outputs = task.adapted(one_array(table["output"]), task.output_type)
        counts = table["key"].is_valid()
        if "failure" in table.schema.names:  # of a part; another row may have the image elsewhere
            is_of_image = pc.match_substring_regex(pc.struct_field(table["failure"], "step"), r"(^|\.)media$")
            counts = pc.and_not(counts, pc.fill_null(is_of_image, False))
        places = np.flatnonzero(counts.to_numpy())
        keys = key_array.from_arrow(table["key"].take(pa.array(places)))
        order = np.argsort(keys, kind="stable")
        return _Read(table.combine_chunks(), outputs, origin, payer, keys[order], places[order])
