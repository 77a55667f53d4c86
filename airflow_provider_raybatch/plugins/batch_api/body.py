# SPDX-License-Identifier: Apache-2.0
"""The JSON object in the body of a request, of bounded size."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from airflow_provider_raybatch.contract.json_lines import RepeatedKeyError, object_of
from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError, wrong_field

_MOST = 256 * 1024
"""Bytes; the largest batch that the contract allows, with its metadata, has less than 64 KiB."""
_SECONDS = 60.0
"""In which the body comes in."""


async def json_object(request: Request, most: int = _MOST) -> dict[str, Any]:
    """The object; an empty body is an empty one, as for calls without parameters.

    :param most: bytes.
    :raises OpenAiError: it is too large or too slow, not JSON, not an object, or has a key twice.
    """
    content = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > most:
                    most_kib = f"{most // 1024} KiB"
                    raise OpenAiError(413, f"The body has more than {most_kib}, the most of this call.")
    except TimeoutError:
        raise OpenAiError(408, f"The body did not end in {_SECONDS:g} s; send it again.") from None
    except ClientDisconnect:
        raise OpenAiError(400, "The connection ended before the body did.") from None
    if not content.strip():
        return {}
    try:
        found = json.loads(content, parse_constant=_refused_number, object_pairs_hook=object_of)
    except RepeatedKeyError as error:
        raise wrong_field(error.key, "the body has it twice in one object; send it once") from None
    except (ValueError, RecursionError):
        raise OpenAiError(400, "The body is not JSON; send a JSON object in UTF-8.") from None
    if not isinstance(found, dict):
        raise OpenAiError(400, f"The body is a JSON {type(found).__name__}; send a JSON object.")
    return found


def _refused_number(name: str) -> Any:
    raise ValueError(name)
