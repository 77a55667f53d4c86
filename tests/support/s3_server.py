# SPDX-License-Identifier: Apache-2.0
"""An S3 API server over real HTTP (moto's)."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.contract.secrets import AwsCredentials


@dataclass(frozen=True)
class S3Server:
    """Its address and credentials; all credentials are valid unless moto is set to check them."""

    url: str

    @property
    def credentials(self) -> AwsCredentials:
        return AwsCredentials(
            aws_access_key_id=SecretStr("key"),
            aws_secret_access_key=SecretStr("secret"),
            endpoint_url=self.url,
        )

    def new_bucket(self) -> str:
        import boto3

        name = f"bucket-{uuid.uuid4().hex[:8]}"
        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        client.create_bucket(Bucket=name)
        return name


@contextlib.contextmanager
def serving() -> Iterator[S3Server]:
    """Serve S3 on a free port; skip the test without moto."""
    server_module = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise it logs a line for each request
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield S3Server(f"http://{host}:{port}")
    server.stop()
