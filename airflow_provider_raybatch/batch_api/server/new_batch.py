# SPDX-License-Identifier: Apache-2.0
"""The body of a create, checked field by field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_provider_raybatch.batch_api.server.objects import EXPIRY, wrong_field
from airflow_provider_raybatch.contract.arguments.openai_batch import ENDPOINTS
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.text import json_digest

MOST_PAIRS, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
"""Of metadata."""
_OPENAI_WINDOW = "24h"
"""The only one that OpenAI offers."""
SHORTEST_WINDOW, LONGEST_WINDOW = 10 * 60, 14 * 24 * 3600
"""Seconds: an engine needs minutes to start, and uploads are deleted after weeks."""
_WINDOW = re.compile(r"([1-9]\d{0,4})([mhd])", re.ASCII)
_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600}
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
            raise wrong_field(name, "there is no such field; remove it", code="unknown_parameter")
    window = _text(body, "completion_window")
    return NewBatch(
        input_file_id=_text(body, "input_file_id"),
        endpoint=_endpoint(_text(body, "endpoint")),
        window=window,
        seconds=_window_seconds(window, strict=strict),
        metadata=_metadata(body.get("metadata")),
        outputs_expire_after=_expiry(body.get("output_expires_after")),
        digest=json_digest(dict(body)),
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        raise wrong_field(name, "a value is needed here; none was given", code="missing_required_parameter")
    return _plain(name, value)


def _plain(name: str, value: Any) -> str:
    """Text that can be stored: JSON may have half of a character."""
    if not isinstance(value, str):
        raise wrong_field(name, f"it must be text, but it is {shown(value)}", code="invalid_type")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong_field(name, "it holds half of a character (a lone surrogate); remove it") from None
    return value


def _window_seconds(given: str, *, strict: bool) -> int:
    found = _WINDOW.fullmatch(given)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if strict and given != _OPENAI_WINDOW:
        raise wrong_field("completion_window", f"it must be {_OPENAI_WINDOW!r}, but it is {shown(given)}")
    if not SHORTEST_WINDOW <= seconds <= LONGEST_WINDOW:
        raise wrong_field(
            "completion_window",
            f"it must be from 10 minutes to 14 days, such as '24h', '90m' or '3d', but it is {shown(given)}",
        )
    return seconds


def _endpoint(given: str) -> str:
    if given not in _ENDPOINTS:
        raise wrong_field(
            "endpoint", f"it must be one of {', '.join(map(repr, _ENDPOINTS))}, but it is {shown(given)}"
        )
    return given


def _metadata(given: Any) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise wrong_field(
            "metadata", f"it must be an object of texts, but it is {shown(given)}", code="invalid_type"
        )
    if len(given) > MOST_PAIRS:
        raise wrong_field("metadata", f"it has {len(given)} pairs, and at most {MOST_PAIRS} are kept")
    for key, value in given.items():
        _plain("metadata", key)
        if len(key) > LONGEST_KEY:
            raise wrong_field("metadata", f"the key {shown(key)} has more than {LONGEST_KEY} characters")
        if len(_plain(f"metadata.{key}", value)) > LONGEST_VALUE:
            raise wrong_field(f"metadata.{key}", f"its value has more than {LONGEST_VALUE} characters")
    return dict(given)


def _expiry(given: Any) -> int:
    name, (shortest, longest) = "output_expires_after", EXPIRY
    if given is None:
        return longest
    if not isinstance(given, Mapping) or set(given) != {"anchor", "seconds"}:
        raise wrong_field(name, f"it must be an object with anchor and seconds, but it is {shown(given)}")
    if given["anchor"] != "created_at":
        raise wrong_field(f"{name}.anchor", f"it must be 'created_at', but it is {shown(given['anchor'])}")
    seconds = given["seconds"]
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not shortest <= seconds <= longest:
        raise wrong_field(
            f"{name}.seconds",
            f"it must be a whole number from {shortest} to {longest}, but it is {shown(seconds)}",
        )
    return seconds
