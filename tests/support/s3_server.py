# SPDX-License-Identifier: Apache-2.0
"""An S3 API server over real HTTP (moto's)."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.contract.secrets import AwsCredentials

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True)
class S3Server:
    """Its address and credentials; all credentials are valid unless moto is set to check them."""

    url: str
    key_id: str = "key"
    secret: str = "secret"
    session_token: str | None = None

    @property
    def credentials(self) -> AwsCredentials:
        return AwsCredentials(
            aws_access_key_id=SecretStr(self.key_id),
            aws_secret_access_key=SecretStr(self.secret),
            endpoint_url=self.url,
        )

    def connection(self) -> dict[str, Any]:
        """The fields of an Airflow connection of type ``aws``."""
        extra = {"endpoint_url": self.url, "region_name": "us-east-1"}
        if self.session_token:
            extra["aws_session_token"] = self.session_token
        return {"login": self.key_id, "password": self.secret, "extra": extra}

    def client(self, service: str = "s3", **options: Any) -> Any:
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.key_id,
            aws_secret_access_key=self.secret,
            aws_session_token=self.session_token,
            **options,
        )

    def objects(self, bucket: str, prefix: str = "") -> dict[str, bytes]:
        """Return all objects below `prefix`, by key."""
        s3 = self.client()
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    @property
    def environment(self) -> dict[str, str]:
        """Variables that give a process access by its own identity."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    def open_to_this_process(self, patch: pytest.MonkeyPatch) -> None:
        """Give this process access by its own identity."""
        for name, value in self.environment.items():
            patch.setenv(name, value)

    def new_bucket(self) -> str:
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        self.client().create_bucket(Bucket=name)
        return name


class _OneWriteAtATime:
    """A conditional put is one step in S3. moto looks for the name and stores the object in two."""

    def __init__(self, app: WsgiApp) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._app(environ, start_response)
        if length := int(environ.get("CONTENT_LENGTH") or 0):
            # Before the lock: a client may send its last byte late, or never.
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self._lock:
            return list(self._app(environ, start_response))


@contextlib.contextmanager
def serving(wrap: Callable[[WsgiApp], WsgiApp] = lambda app: app) -> Iterator[S3Server]:
    """Serve S3 on a free port; skip the test without moto.

    :param wrap: puts something before the server, whose buckets all servers of a process share.
    """
    server_module = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise it logs a line for each request
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = wrap(_OneWriteAtATime(server._server.app))
    host, port = server.get_host_and_port()
    yield S3Server(f"http://{host}:{port}")
    server.stop()
