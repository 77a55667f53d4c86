# SPDX-License-Identifier: Apache-2.0
"""Files, batches, pages of lists and refusals in the JSON that OpenAI's clients read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from airflow_provider_raybatch.batch_api.store.records import BatchState, FileRecord, Usage
from airflow_provider_raybatch.contract.base import shown

EXPIRY = (3600, 2_592_000)
"""Seconds that files may be kept for: from one hour to 30 days."""


class OpenAiError(Exception):
    """An answer other than 2xx; its text is for the client.

    :param status: HTTP status. Official clients repeat 408, 409, 429 and 5xx by themselves.
    :param message: one sentence.
    :param param: the field that is wrong.
    :param code: a word for programs.
    :param headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """As `https://platform.openai.com/docs/guides/error-codes` has it."""
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def wrong_field(param: str, why: str, code: str = "invalid_value") -> OpenAiError:
    """The refusal of a field.

    :param param: its name, which may be anything where a client has made it up.
    :param why: without its name, and without a full stop.
    """
    name = shown(param)[1:-1]
    return OpenAiError(400, f"{name}: {why}.", param=name, code=code)


def come_back(status: int, message: str, seconds: int = 5) -> OpenAiError:
    """A refusal that says when to come back: 429 to a user who asks too much, or 503."""
    code = "rate_limit_exceeded" if status == 429 else None
    return OpenAiError(status, message, code=code, headers={"Retry-After": str(seconds)})


def file_object(record: FileRecord) -> dict[str, Any]:
    """A file as clients see it. It is usable from the moment it is listed, so always ``processed``."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": int(record.created_at),
        "expires_at": int(record.expires_at),
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def deleted_file(file_id: str) -> dict[str, Any]:
    """The answer to a deletion."""
    return {"id": file_id, "object": "file", "deleted": True}


def batch_object(state: BatchState) -> dict[str, Any]:
    """A batch as clients see it; what is not known yet is ``null``."""
    record, ended = state.record, state.ended
    errors = ended.errors if ended is not None else state.outcome.errors if state.outcome is not None else ()
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "model": record.model or None,
        "errors": {"object": "list", "data": [one.model_dump() for one in errors]} if errors else None,
        "input_file_id": record.input_file_id,
        "completion_window": record.window,
        "status": state.status,
        "output_file_id": None if ended is None else ended.output_file_id,
        "error_file_id": None if ended is None else ended.error_file_id,
        "created_at": int(record.created_at),
        "expires_at": int(record.expires_at),
        **_times(state),
        "request_counts": state.counts.model_dump(),
        "usage": None if ended is None else _usage(ended.usage),
        "metadata": record.metadata,
    }


def listing(data: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """A page of a list; the official clients ask for the next one with ``after=<last_id>``."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def model_object(name: str, created: float) -> dict[str, Any]:
    """A model as clients see it.

    :param created: epoch seconds.
    """
    return {"id": name, "object": "model", "created": int(created), "owned_by": "raybatch"}


def _times(state: BatchState) -> dict[str, int | None]:
    """When each state was entered. Clocks of machines differ; the times of one batch never run backwards."""
    created = state.record.created_at
    begun = None if state.started is None else max(state.started.at, created)
    decided = _decided(state)
    decision = None if decided is None else decided[0]
    decided_at = None if decided is None else max(decided[1], begun or created)
    ended_at = None if state.ended is None or decided_at is None else max(state.ended.at, decided_at)

    def seconds(at: float | None, *decisions: str) -> int | None:
        return int(at) if at is not None and decision in decisions else None

    return {
        "in_progress_at": None if begun is None else int(begun),
        "finalizing_at": seconds(decided_at, "completed", "expired"),
        "completed_at": seconds(ended_at, "completed"),
        # A batch has failed once that is decided; what ends it later changes nothing that clients see.
        "failed_at": seconds(decided_at, "failed"),
        "expired_at": seconds(ended_at, "expired"),
        "cancelling_at": seconds(decided_at, "cancelled", "limit_reached"),
        "cancelled_at": seconds(ended_at, "cancelled", "limit_reached"),
    }


def _decided(state: BatchState) -> tuple[str, float] | None:
    if state.ended is not None:
        return state.ended.decision, state.ended.decided_at
    return None if state.outcome is None else (state.outcome.decision, state.outcome.at)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


_NUMBER = re.compile(r"[0-9]{1,9}")


class Page(NamedTuple):
    """Ids of a page.

    :param has_more: whether others follow.
    """

    ids: list[str]
    has_more: bool


def page_of(
    newest_first: Sequence[str],
    *,
    default: int,
    most: int,
    limit: str | None = None,
    after: str | None = None,
    order: str | None = None,
    gone_at: int | None = None,
) -> Page:
    """A page of a list.

    :param newest_first: all ids that the caller may see.
    :param default: ids on a page whose `limit` is not given, and `most` on any page.
    :param limit: as in the query, like `after` and `order`: ``desc`` (newest first, the default) or ``asc``.
    :param gone_at: how many in the list are newer than the entry `after`, if that was deleted.
    :raises OpenAiError: a parameter can't be used, or `after` is not in the list: an empty page would end the
        loop of a client as if it had seen everything.
    """
    length = default if limit is None else int(limit) if _NUMBER.fullmatch(limit) else 0
    if not 1 <= length <= most:
        raise wrong_field("limit", f"{shown(limit)} is not a page size; use a number from 1 to {most:,}")
    if order not in {None, "asc", "desc"}:
        raise wrong_field("order", f"{shown(order)} is not an order; use asc or desc")
    ids, start = list(newest_first), 0
    if order == "asc":
        ids.reverse()
    if after in ids:
        start = ids.index(after) + 1
    elif gone_at is not None:
        start = len(ids) - gone_at if order == "asc" else gone_at
    elif after is not None:
        raise wrong_field(
            "after", f"{shown(after)} is not in this list; use the id of its last entry that you have seen"
        )
    return Page(ids[start : start + length], start + length < len(ids))
