# SPDX-License-Identifier: Apache-2.0
"""The rows of a chunk as requests, with row id and request key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.table import as_text
from airflow_provider_raybatch.job.media.allowed import ImageAccess
from airflow_provider_raybatch.job.media.load import versioned
from airflow_provider_raybatch.job.request import keys
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.request.render import Render, needed_columns, render_all
from airflow_provider_raybatch.job.row import NOT_ASKED, Image, Request, Response, RowFailure, RowOutcome


@dataclass(frozen=True)
class PreparedRow:
    """One row, ready for the engine, or failed before it.

    :param key: of the request; ``None`` also until the versions of its images are known.
    :param repetition: how many earlier rows make the same sampled request.
    :param before: key of the row's last request, in a later step.
    :param is_shared: whether rows with the same key have the same answer, so that one of them is asked.
    """

    request: Request | RowFailure
    key: bytes | None = None
    row_id: str | None = None
    raw: str = ""
    repetition: int = 0
    before: bytes | None = None
    is_shared: bool = False

    def outcome(self, ordinal: int, result: Response | RowFailure) -> RowOutcome:
        """What is written when the row is finished."""
        kept = ""
        if isinstance(result, RowFailure):
            kept = self.request.as_json() if isinstance(self.request, Request) else self.raw
        return RowOutcome(ordinal, result, kept, self.key, self.row_id)


class RequestBuilder:
    """Turns rows into requests: the same way in the replicas as in the earlier lookup of keys.

    :param access: to images, where requests have keys before these are loaded.
    """

    def __init__(
        self, spec: BatchInferenceSpec, render: Render, keyer: Keyer, access: ImageAccess | None = None
    ) -> None:
        self._access = access
        self._render = render
        self._keyer = keyer
        self._id_column = spec.id_column
        self._calls_users_code = spec.prompt_function is not None
        self._shares = spec.deduplicate
        self._is_later = spec.is_later_step

    def ask(
        self,
        rows: Sequence[Any],
        repetitions: Mapping[int, int] | None = None,
        killer: RowFailure | None = None,
        before: Sequence[bytes | None] | None = None,
    ) -> list[PreparedRow]:
        """The requests of `rows`.

        :param repetitions: number of earlier rows with an equal request, by place in `rows`; for sampled
            requests.
        :param killer: the failure of rows that end the process: a user's function may be what ends it, so it
            is not called again.
        :param before: the key of each row's last request; by default none.
        """
        if killer is not None and self._calls_users_code:
            return [self._one(row, killer, 0) for row in rows]
        numbers, made = repetitions or {}, render_all(self._render, rows)
        if self._access is not None:
            made = versioned(made, self._access)
        each = zip(rows, made, before or [None] * len(rows), strict=True)
        return [
            self._one(row, one, numbers.get(place, 0), last) for place, (row, one, last) in enumerate(each)
        ]

    def skipped(self, row: Any) -> PreparedRow:
        """A row that is not asked."""
        return self._one(row, NOT_ASKED, 0)

    def keyed(self, row: PreparedRow, images: tuple[Image, ...]) -> PreparedRow:
        """A row whose request has a key, once its images have been read.

        :param images: those of its request, with their versions.
        """
        assert isinstance(row.request, Request)
        request = replace(row.request, images=images)
        return replace(row, request=request, key=self._key(request, row.repetition, row.before))

    def _one(
        self, row: Any, made: Request | RowFailure, number: int, before: bytes | None = None
    ) -> PreparedRow:
        if isinstance(row, BadRow):
            return PreparedRow(made, raw=row.text)
        row_id = None if self._id_column is None else as_text(row.get(self._id_column))
        if isinstance(made, RowFailure):
            return PreparedRow(made, row_id=row_id)
        key = self._key(made, number, before)
        # A sampled request has a key of its own, unless it is of a later step.
        has_equals = self._is_later or self._keyer.is_greedy(made)
        is_shared = self._shares and key is not None and has_equals
        return PreparedRow(made, key, row_id, repetition=number, before=before, is_shared=is_shared)

    def _key(self, request: Request, number: int, before: bytes | None) -> bytes | None:
        if not request.has_versions:
            return None
        key = keys.nth(self._keyer.key(request), number)
        return key if before is None else self._keyer.in_step(key, request, before)


def read_columns(spec: BatchInferenceSpec) -> list[str] | None:
    """Columns that requests and row ids need; ``None`` for all."""
    columns = needed_columns(spec)
    if columns is None or spec.id_column is None:
        return columns
    return list(dict.fromkeys([*columns, spec.id_column]))
