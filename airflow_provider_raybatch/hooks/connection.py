# SPDX-License-Identifier: Apache-2.0
"""An Airflow connection of type ``ray``, read strictly: one sentence for each field that is wrong."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import RayConnectionError

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress

_log = logging.getLogger(__name__)

DEFAULT_CONN_ID = "ray_default"
DASHBOARD_PORT = 8265
LOCAL = "local"

_KNOWN_EXTRAS = frozenset({
    "namespace", "path_prefix", "verify", "ca_bundle", "headers", "cookies", "connect_timeout",
    "request_timeout", "seal_key", "dashboard_url",
})  # fmt: skip


class ConnectionLike(Protocol):
    """The fields of Airflow's ``Connection`` that are read here."""

    conn_id: str
    host: str | None
    port: int | None
    schema: str | None
    password: str | None
    extra: str | None


@dataclass(frozen=True)
class RayConnection:
    """How to reach a Ray cluster, and what else its connection says.

    :param url: base URL of the Jobs API; ``None`` means that the task starts a private Ray of its own.
    :param token: sent as ``Authorization: Bearer ...``.
    :param verify: whether the server's certificate is checked, or the path of a PEM file to check it with.
    :param connect_timeout: seconds; ``None`` stands for the client's 10.
    :param request_timeout: seconds; ``None`` stands for the client's 60.
    :param namespace: tells apart several Airflows that share the cluster; ``None`` stands for the id of the
        installation.
    :param seal_key: Fernet key for credentials that travel with a job.
    :param dashboard_url: the dashboard as a person's browser reaches it; by default `url`.
    """

    conn_id: str
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    cookies: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool | str = True
    connect_timeout: float | None = None
    request_timeout: float | None = None
    namespace: str | None = None
    seal_key: str | None = field(default=None, repr=False)
    dashboard_url: str | None = None

    @property
    def embedded(self) -> bool:
        """Whether the task starts a private single-node Ray instead of talking to a cluster."""
        return self.url is None

    @property
    def secrets(self) -> list[str]:
        """Everything that must not appear in a log."""
        found = [self.token, self.seal_key, *self.headers.values(), *self.cookies.values()]
        return [value for value in found if value]

    def address(self) -> ClusterAddress:
        """The address for the Jobs API client.

        :raises RayConnectionError: there is no cluster to address.
        """
        from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress

        if self.url is None:
            raise RayConnectionError(
                f"Connection {self.conn_id!r}, field host: 'local' names no cluster; "
                "set it to the Ray dashboard's host."
            )
        timeouts = {"connect_timeout": self.connect_timeout, "request_timeout": self.request_timeout}
        try:
            return ClusterAddress(
                url=self.url,
                token=self.token,
                headers=dict(self.headers),
                cookies=dict(self.cookies),
                verify=self.verify,
                **{name: value for name, value in timeouts.items() if value is not None},
            )
        except SpecError as error:
            raise RayConnectionError(f"Connection {self.conn_id!r}, {error}") from None

    def job_page(self, submission_id: str) -> str | None:
        """The job's page in the Ray dashboard, for people; ``None`` for a private Ray."""
        base = self.dashboard_url or self.url
        return f"{base.rstrip('/')}/#/jobs/{submission_id}" if base else None


def read_connection(connection: ConnectionLike) -> RayConnection:
    """Read Airflow's connection.

    Host (bare, or a URL with a path), port and schema give the URL; without a port it is 8265 for a bare host
    and ``http``, else the scheme's own. The host ``local`` means a private Ray. The password is the token.

    :raises RayConnectionError: a field can't be used.
    """
    reader = _Extras(connection)
    host = (connection.host or "").strip()
    if not host:
        raise RayConnectionError(
            f"Connection {connection.conn_id!r}, field host: it is empty; name the Ray dashboard's host, or "
            f"{LOCAL!r} for a private Ray on the worker."
        )
    ca_bundle = reader.text("ca_bundle")
    if ca_bundle is not None and not Path(ca_bundle).is_file():
        raise reader.wrong("ca_bundle", ca_bundle, "is no file on this machine; name a PEM file")
    verify = reader.boolean("verify", default=True)
    if ca_bundle and not verify:
        raise reader.wrong("verify", verify, "contradicts ca_bundle; remove one of them")
    return RayConnection(
        conn_id=connection.conn_id,
        url=None if host.lower() == LOCAL else _url(connection, host, reader),
        token=(connection.password or "").strip() or None,
        headers=reader.strings("headers"),
        cookies=reader.strings("cookies"),
        verify=ca_bundle or verify,
        connect_timeout=reader.seconds("connect_timeout"),
        request_timeout=reader.seconds("request_timeout"),
        namespace=reader.text("namespace"),
        seal_key=reader.text("seal_key"),
        dashboard_url=_dashboard_url(connection, reader),
    )


def _url(connection: ConnectionLike, host: str, reader: _Extras) -> str:
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
    # What can't be taken apart is shown below, so no part of it may be a login.
    if "@" in (parts.netloc or host):
        raise RayConnectionError(
            f"Connection {connection.conn_id!r}, field host: it carries a login, which would end up in logs; "
            "put a token into the password and everything else into headers."
        )
    scheme, port = parts.scheme or schema or "http", connection.port or port
    usable = parts.hostname and not parts.query and not re.search(r"\s", host)
    if scheme not in {"http", "https"} or not usable or not parts.hostname:
        raise RayConnectionError(
            f"Connection {connection.conn_id!r}, field host: {connection.host!r} is no address; "
            "use a host name, http://host:8265 or https://host/path."
        )
    if port is None and "://" not in host and scheme == "http":
        port = DASHBOARD_PORT
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    prefix = (reader.text("path_prefix") or parts.path).strip("/")
    return f"{scheme}://{name}" + (f":{port}" if port else "") + (f"/{prefix}" if prefix else "")


def _dashboard_url(connection: ConnectionLike, reader: _Extras) -> str | None:
    value = (reader.text("dashboard_url") or "").strip()
    if not value:
        return None
    field_name = f"Connection {connection.conn_id!r}, field dashboard_url in extra"
    try:
        parts = urlsplit(value)
        netloc, host, _ = parts.netloc, parts.hostname, parts.port
    except ValueError:
        parts, netloc, host = urlsplit(""), value, None
    # Only a path may have an "@": what can't be taken apart is shown below, and the link is for all to see.
    if "@" in (netloc if host else value):
        raise RayConnectionError(
            f"{field_name}: it carries a login, which everybody would see in the link to the job; remove it."
        )
    if parts.scheme not in {"http", "https"} or not host:
        raise RayConnectionError(
            f"{field_name}: {value!r} is no address that a browser opens; use https://host/path."
        )
    return value


class _Extras:
    """The extra field, value by value."""

    def __init__(self, connection: ConnectionLike) -> None:
        self._conn_id = connection.conn_id
        try:
            values = json.loads(connection.extra) if connection.extra else {}
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise RayConnectionError(
                f"Connection {connection.conn_id!r}, field extra: it is no JSON object; "
                'write it like {"namespace": "team-a"}.'
            )
        unknown = sorted(set(values) - _KNOWN_EXTRAS)
        if unknown:
            # Other providers have connections of this type, too, with extras of their own.
            _log.warning(
                "Connection %r, field extra: %s not known here and without effect; known are %s.",
                connection.conn_id,
                f"{', '.join(map(repr, unknown))} {'is' if len(unknown) == 1 else 'are'}",
                ", ".join(sorted(_KNOWN_EXTRAS)),
            )
        self._values: dict[str, Any] = values

    def wrong(self, name: str, value: object, remedy: str) -> RayConnectionError:
        return RayConnectionError(f"Connection {self._conn_id!r}, field {name} in extra: {value!r} {remedy}.")

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise RayConnectionError(
                f"Connection {self._conn_id!r}, field {name} in extra: "
                f"a value of type {type(value).__name__} is no text; put quotes around it."
            )
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name)
        if value is None or value == "":
            return default
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.strip().lower(), value)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "is neither true nor false")
        return value

    def seconds(self, name: str) -> float | None:
        value = self._values.get(name)
        if value is None or value == "":
            return None
        try:
            seconds = float(value) if not isinstance(value, bool) else -1.0
        except (TypeError, ValueError):
            seconds = -1.0
        if not 0 < seconds < float("inf"):
            raise self.wrong(name, value, "is no positive number of seconds")
        return seconds

    def strings(self, name: str) -> dict[str, str]:
        value = self._values.get(name)
        if value is None or value == "":
            return {}
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        # Headers and cookies carry credentials, so their values stay out of the message.
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise RayConnectionError(
                f"Connection {self._conn_id!r}, field {name} in extra: it is no JSON object of texts; "
                'write it like {"X-Name": "value"}.'
            )
        return dict(value)
