# SPDX-License-Identifier: Apache-2.0
"""Refusals in the form that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.base import shown


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
