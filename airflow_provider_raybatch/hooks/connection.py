# SPDX-License-Identifier: Apache-2.0
"""An Airflow connection of type ``ray``, read strictly: one sentence for each field that is wrong."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import RayConnectionError
from airflow_provider_raybatch.hooks.extras import Extras, read_extras

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress

DEFAULT_CONN_ID = "ray_default"
DASHBOARD_PORT = 8265
LOCAL = "local"

_SCHEME = re.compile(r"(?:bearer|basic|token|apikey|api-key|digest|negotiate) +(\S.*)", re.IGNORECASE)
_OF_CREDENTIALS = ("auth", "cookie", "credential", "jwt", "key", "pass", "secret", "session", "sign", "token")
_WORD = r"(?:[A-Za-z]{1,20}|\d{1,4})"
_WORDS = re.compile(rf"{_WORD}(?:[ ,;:=./_-]+{_WORD})*")


class RayConnection(Extras):
    """How to reach a Ray cluster.

    :param url: base URL of the Jobs API; ``None`` means that the task starts a private Ray of its own.
    :param token: sent as ``Authorization: Bearer ...``.
    """

    conn_id: str
    url: str | None = None
    token: str | None = Field(default=None, repr=False)

    @property
    def embedded(self) -> bool:
        """Whether the task starts a private Ray."""
        return self.url is None

    @property
    def secrets(self) -> list[str]:
        """Everything that must not appear in a log."""
        headers = (_secret_in(name, value) for name, value in self.secret_headers.items())
        found = [self.token, self.secret_seal_key, *headers, *self.secret_cookies.values()]
        return [value for value in found if value]

    def address(self) -> ClusterAddress:
        """The address for the Jobs API client; ``RayConnectionError`` if there is no cluster."""
        from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress

        if self.url is None:
            raise RayConnectionError(
                f"Connection {self.conn_id!r}, field host: 'local' names no cluster; "
                "set it to the Ray dashboard's host."
            )
        same = {"url", "token", "connect_timeout", "request_timeout"}
        try:
            return ClusterAddress(
                verify=self.ca_bundle or self.verify,
                headers=self.secret_headers,
                cookies=self.secret_cookies,
                **self.model_dump(include=same, exclude_none=True),
            )
        except SpecError as error:
            raise RayConnectionError(f"Connection {self.conn_id!r}, {error}") from None

    def job_page(self, submission_id: str) -> str | None:
        """The job's page in the Ray dashboard, for people; ``None`` for a private Ray."""
        base = self.dashboard_url or self.url
        return f"{base.rstrip('/')}/#/jobs/{submission_id}" if base else None


def read_connection(connection: Connection) -> RayConnection:
    """Read Airflow's connection.

    Without a port it is 8265 for a bare host and ``http``, else the scheme's own.

    :raises RayConnectionError: a field can't be used.
    """
    extras = read_extras(connection.conn_id, connection.extra)
    host = (connection.host or "").strip()
    if not host:
        raise RayConnectionError(
            f"Connection {connection.conn_id!r}, field host: it is empty; name the Ray dashboard's host, or "
            f"{LOCAL!r} for a private Ray on the worker."
        )
    return RayConnection(
        conn_id=connection.conn_id,
        url=None if host.lower() == LOCAL else _url(connection, host, extras),
        token=(connection.password or "").strip() or None,
        **extras.model_dump(),
    )


def _url(connection: Connection, host: str, extras: Extras) -> str:
    schema = (connection.schema or "").strip().lower()
    if schema not in {"", "http", "https"}:
        raise RayConnectionError(
            f"Connection {connection.conn_id!r}, field schema: {connection.schema!r} is unknown; "
            "use http or https."
        )
    try:
        parts = urlsplit(host if "://" in host else f"//{host}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    # A host that can't be parsed is shown below, so no part of it may be a login.
    if "@" in (parts.netloc or host):
        raise RayConnectionError(
            f"Connection {connection.conn_id!r}, field host: it carries a login, which would end up in logs; "
            "put a token into the password and everything else into secret_headers."
        )
    scheme, port = parts.scheme or schema or "http", connection.port or port
    usable = parts.hostname and not parts.query and not re.search(r"\s", host)
    if scheme not in {"http", "https"} or not usable or not parts.hostname:
        raise RayConnectionError(
            f"Connection {connection.conn_id!r}, field host: {connection.host!r} is not an address; "
            "use a host name, http://host:8265 or https://host/path."
        )
    if port is None and "://" not in host and scheme == "http":
        port = DASHBOARD_PORT
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    prefix = (extras.path_prefix or parts.path).strip("/")
    return f"{scheme}://{name}" + (f":{port}" if port else "") + (f"/{prefix}" if prefix else "")


def _secret_in(header: str, value: str) -> str:
    """The part of a header's value that no log may show.

    A masked value is masked wherever it occurs in a log. So ``Bearer`` and plain words such as
    ``application/json`` are not masked, unless the header's name tells of a credential.
    """
    if scheme := _SCHEME.fullmatch(value.strip()):
        return scheme.group(1)
    tells = any(word in header.lower() for word in _OF_CREDENTIALS)
    return value if tells or not _WORDS.fullmatch(value) else ""
