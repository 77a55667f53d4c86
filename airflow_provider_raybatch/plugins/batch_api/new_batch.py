# SPDX-License-Identifier: Apache-2.0
"""The body of a create, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_provider_raybatch.batches.windows import window_seconds
from airflow_provider_raybatch.contract.arguments.openai_batch import ENDPOINTS
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.digest import json_digest
from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError

MOST_PAIRS, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
"""Of metadata."""
_EXPIRY = (3600, 2_592_000)
"""Seconds that output files may be kept for: from one hour to 30 days."""
_FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
_ENDPOINTS = tuple(chain.from_iterable(ENDPOINTS.values()))
_IDEMPOTENCY_KEY = "idempotency_key"


@dataclass(frozen=True)
class NewBatch:
    """What a client asks for.

    :param window: as given, and `seconds` its length.
    :param outputs_expire_after: seconds after which output files are deleted.
    :param digest: of the whole body.
    """

    input_file_id: str
    endpoint: str
    window: str
    seconds: int
    metadata: dict[str, str] | None
    outputs_expire_after: int
    digest: str

    @property
    def idempotency_key(self) -> str | None:
        """The key in its metadata, where clients put one that can send no header."""
        return (self.metadata or {}).get(_IDEMPOTENCY_KEY) or None


def new_batch(body: Mapping[str, Any], *, strict: bool = False) -> NewBatch:
    """The batch that a body asks for.

    :param strict: accept what OpenAI accepts, and nothing else.
    :raises OpenAiError: 400, with the field that is wrong.
    """
    for name in body:
        if name not in _FIELDS:
            raise _refused(name, "there is no such field; remove it", code="unknown_parameter")
    window = _text(body, "completion_window")
    try:
        seconds = window_seconds(window, strict=strict)
    except ValueError as error:
        raise OpenAiError(400, str(error), param="completion_window", code="invalid_value") from None
    return NewBatch(
        input_file_id=_text(body, "input_file_id"),
        endpoint=_endpoint(_text(body, "endpoint")),
        window=window,
        seconds=seconds,
        metadata=_metadata(body.get("metadata")),
        outputs_expire_after=_expiry(body.get("output_expires_after")),
        digest=json_digest(dict(body)),
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        raise _refused(name, "a value is needed here; none was given", code="missing_required_parameter")
    return _plain(name, value)


def _plain(name: str, value: Any) -> str:
    """Text that can be stored: JSON may have half of a character."""
    if not isinstance(value, str):
        raise _refused(name, f"it must be text, but it is {shown(value)}", code="invalid_type")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refused(name, "it holds half of a character (a lone surrogate); remove it") from None
    return value


def _endpoint(given: str) -> str:
    if given not in _ENDPOINTS:
        raise _refused(
            "endpoint", f"it must be one of {', '.join(map(repr, _ENDPOINTS))}, but it is {shown(given)}"
        )
    return given


def _metadata(given: Any) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise _refused(
            "metadata", f"it must be an object of texts, but it is {shown(given)}", code="invalid_type"
        )
    if len(given) > MOST_PAIRS:
        raise _refused("metadata", f"it has {len(given)} pairs, and at most {MOST_PAIRS} are kept")
    for key, value in given.items():
        _plain("metadata", key)
        if len(key) > LONGEST_KEY:
            raise _refused("metadata", f"the key {shown(key)} has more than {LONGEST_KEY} characters")
        if len(_plain(f"metadata.{key}", value)) > LONGEST_VALUE:
            raise _refused(f"metadata.{key}", f"its value has more than {LONGEST_VALUE} characters")
    return dict(given)


def _expiry(given: Any) -> int:
    name, (shortest, longest) = "output_expires_after", _EXPIRY
    if given is None:
        return longest
    if not isinstance(given, Mapping) or set(given) != {"anchor", "seconds"}:
        raise _refused(name, f"it must be an object with anchor and seconds, but it is {shown(given)}")
    if given["anchor"] != "created_at":
        raise _refused(f"{name}.anchor", f"it must be 'created_at', but it is {shown(given['anchor'])}")
    seconds = given["seconds"]
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not shortest <= seconds <= longest:
        raise _refused(
            f"{name}.seconds",
            f"it must be a whole number from {shortest} to {longest}, but it is {shown(seconds)}",
        )
    return seconds


def _refused(param: str, why: str, code: str = "invalid_value") -> OpenAiError:
    name = shown(param)[1:-1]
    return OpenAiError(400, f"{name}: {why}.", param=name, code=code)
