# SPDX-License-Identifier: Apache-2.0
"""An Airflow connection of type ``ray``, read strictly: one sentence for each field that is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import RayConnectionError
from airflow_provider_raybatch.hooks.extras import Extras, read_extras

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress

DEFAULT_CONN_ID = "ray_default"
DASHBOARD_PORT = 8265
LOCAL = "local"


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


def read_connection(connection: Connection) -> RayConnection:
    """Read Airflow's connection.

    Host (bare, or a URL with a path), port and schema give the URL; without a port it is 8265 for a bare host
    and ``http``, else the scheme's own. The host ``local`` means a private Ray. The password is the token.

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
        headers=extras.headers,
        cookies=extras.cookies,
        verify=extras.ca_bundle or extras.verify,
        connect_timeout=extras.connect_timeout,
        request_timeout=extras.request_timeout,
        namespace=extras.namespace,
        seal_key=extras.seal_key,
        dashboard_url=extras.dashboard_url,
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
            f"Connection {connection.conn_id!r}, field host: {connection.host!r} is not an address; "
            "use a host name, http://host:8265 or https://host/path."
        )
    if port is None and "://" not in host and scheme == "http":
        port = DASHBOARD_PORT
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    prefix = (extras.path_prefix or parts.path).strip("/")
    return f"{scheme}://{name}" + (f":{port}" if port else "") + (f"/{prefix}" if prefix else "")
