# SPDX-License-Identifier: Apache-2.0
"""The extra field of an Airflow connection of type ``ray``."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from airflow_provider_raybatch.coercion import boolean
from airflow_provider_raybatch.contract.arguments.limits import Currency, GpuHourPrice
from airflow_provider_raybatch.contract.base import Seconds, requirement, shown
from airflow_provider_raybatch.exceptions import RayConnectionError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_log = logging.getLogger(__name__)

_MUST_BE = {
    "verify": "is neither true nor false",
    "connect_timeout": "is not a positive number of seconds",
    "request_timeout": "is not a positive number of seconds",
}


def _parsed(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


def _price(value: object) -> object:
    try:
        return _parsed(value)
    except ValueError:
        return value  # which says itself what is wrong


Texts = Annotated[dict[str, str], BeforeValidator(_parsed)]
"""A JSON object of texts, or its text."""


class Extras(BaseModel):
    """What can be given, as the connection's form describes it; null and empty text count as not given."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    namespace: str | None = None
    path_prefix: str | None = None
    verify: Annotated[bool, BeforeValidator(partial(boolean, name="verify"))] = True
    ca_bundle: str | None = None
    secret_headers: Texts = Field(default_factory=dict, repr=False)
    secret_cookies: Texts = Field(default_factory=dict, repr=False)
    connect_timeout: Seconds | None = Field(default=None, gt=0)
    request_timeout: Seconds | None = Field(default=None, gt=0)
    secret_seal_key: str | None = Field(default=None, repr=False)
    dashboard_url: str | None = None
    gpu_hour_price: Annotated[GpuHourPrice, BeforeValidator(_price)] | None = None
    currency: Currency | None = None

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value is not None and value != ""}

    @field_validator("ca_bundle")
    @classmethod
    def _is_a_file(cls, path: str, others: ValidationInfo) -> str:
        if not Path(path).is_file():
            raise ValueError(f"{path!r} is not a file on this machine; name a PEM file")
        if others.data.get("verify") is False:
            raise ValueError(f"{path!r} contradicts verify; remove one of them")
        return path

    @field_validator("dashboard_url")
    @classmethod
    def _is_for_a_browser(cls, given: str) -> str | None:
        url = given.strip()
        try:
            parts = urlsplit(url)
            netloc, host, _ = parts.netloc, parts.hostname, parts.port
        except ValueError:
            parts, netloc, host = urlsplit(""), url, None
        # Only a path may have an "@": a URL that can't be parsed is shown below, and all see the link.
        if "@" in (netloc if host else url):
            raise ValueError(
                "it carries a login, which the link to the job would show to all its readers; remove it"
            )
        if url and (parts.scheme not in {"http", "https"} or not host):
            raise ValueError(f"{url!r} is not an address that a browser opens; use https://host/path")
        return url or None


def read_extras(conn_id: str, extra: str | None) -> Extras:
    """Read the extra field, and warn of unknown names.

    :raises RayConnectionError: it is not a JSON object, or a value in it can't be used.
    """
    try:
        values = json.loads(extra) if extra else {}
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise RayConnectionError(
            f"Connection {conn_id!r}, field extra: it is not a JSON object; "
            'write it like {"namespace": "team-a"}.'
        )
    if unknown := sorted(values.keys() - Extras.model_fields.keys()):
        # Other providers have connections of this type, too, with extras of their own.
        _log.warning(
            "Connection %r, field extra: %s not known here and without effect; known are %s.",
            conn_id,
            f"{', '.join(map(repr, unknown))} {'is' if len(unknown) == 1 else 'are'}",
            ", ".join(sorted(Extras.model_fields)),
        )
    try:
        return Extras.model_validate(values)
    except ValidationError as error:
        # Only what can't be a secret is shown.
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise RayConnectionError(
            f"Connection {conn_id!r}, field {name} in extra: {_problem(name, first)}."
        ) from None


def _problem(name: str, error: ErrorDetails) -> str:
    if name in {"secret_headers", "secret_cookies"}:
        return 'it is not a JSON object of texts; write it like {"X-Name": "value"}'
    if name in _MUST_BE:
        return f"{error['input']!r} {_MUST_BE[name]}"
    if name == "gpu_hour_price":
        return ": ".join([*map(str, error["loc"][1:]), _price_problem(error)])
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"a value of type {type(error['input']).__name__} is not text; put quotes around it"


def _price_problem(error: ErrorDetails) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    needed = requirement(error["type"], error["msg"], error.get("ctx", {}))
    return f"{needed}, but it is {shown(error['input'])}"
