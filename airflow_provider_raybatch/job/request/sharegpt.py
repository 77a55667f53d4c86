# SPDX-License-Identifier: Apache-2.0
"""Messages of ShareGPT, ``{"from": "human", "value": ...}``, as those of a chat."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.job.row import RenderError

ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "assistant": "assistant",
}
"""Role by ``from``."""


def as_chat(message: Any, what: str) -> Any:
    """A message of ShareGPT with the names of a chat, without its other fields; any other value as it is.

    :param what: begins the sentence of an error.
    :raises RenderError: who said it is not known.
    """
    if not isinstance(message, dict) or "role" in message or "from" not in message:
        return message
    said_by = message["from"]
    if not isinstance(said_by, str) or said_by not in ROLES:
        raise RenderError(f"{what} has a message from {said_by!r}, and only {', '.join(ROLES)} have a role")
    return {"role": ROLES[said_by], **({"content": message["value"]} if "value" in message else {})}
