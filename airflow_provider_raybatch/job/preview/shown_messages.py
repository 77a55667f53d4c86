# SPDX-License-Identifier: Apache-2.0
"""What a request asks, as text for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.contract.preview import MOST_CHARACTERS, ShownMessage
from airflow_provider_raybatch.contract.text import clean, cut_to
from airflow_provider_raybatch.job.request.messages import text_of
from airflow_provider_raybatch.job.row import RenderError, Request


def shown_messages(request: Request, room: int = MOST_CHARACTERS, most: int = 64) -> tuple[ShownMessage, ...]:
    """Its texts, the earlier ones first, until the room for them is used up.

    :param room: characters of all of them.
    :param most: how many are shown.
    """
    texts = _texts(request)
    shown = []
    for role, text in texts[:most]:
        text = cut_to(max(100, room), clean(text))
        room -= len(text)
        shown.append(ShownMessage(role=cut_to(100, clean(role)), text=text))
    left = len(texts) - len(shown)
    return (*shown, ShownMessage(role="", text=f"[{left:,} more messages]")) if left else tuple(shown)


def _texts(request: Request) -> list[tuple[str, str]]:
    """Role and text of each message; the role of a raw prompt is empty."""
    if request.each:
        return [text for one in request.each for text in _texts(one)]
    if request.messages is None:
        return [("", request.prompt or "")]
    return [(str(message.get("role", "")), _text(message)) for message in request.messages]


def _text(message: Mapping[str, Any]) -> str:
    try:
        text = text_of(message.get("content"))
    except RenderError:  # it is for another server
        text = json.dumps(message.get("content"), ensure_ascii=False, default=str)
    calls: Sequence[Any] = message.get("tool_calls") or ()
    return f"{text}{json.dumps(calls, ensure_ascii=False, default=str)}" if calls else text
