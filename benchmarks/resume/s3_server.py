# SPDX-License-Identifier: Apache-2.0
"""An S3 server in this process that counts requests and can delay its answers."""

from __future__ import annotations

import contextlib
import logging
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from places import Place


class S3:
    """moto's server in this process, with one bucket.

    :param requests: number of answered requests.
    :param latency: seconds before each answer.
    """

    def __init__(self) -> None:
        self.requests, self.latency = 0, 0.0

    @contextlib.contextmanager
    def serve(self, local: Path) -> Iterator[Place]:
        """Yield a place in the bucket."""
        import boto3
        from moto.server import ThreadedMotoServer
        from werkzeug.serving import WSGIRequestHandler

        def answering(handler: Any, *arguments: Any) -> None:
            self.requests += 1
            time.sleep(self.latency)

        WSGIRequestHandler.log_request = answering  # type: ignore[assignment,method-assign]
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        # moto keeps its buckets after the end of a server.
        urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()
        place = Place("s3://benchmark", local, f"http://{host}:{port}")
        boto3.client(
            "s3",
            endpoint_url=place.endpoint,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        ).create_bucket(Bucket="benchmark")
        yield place
        server.stop()
