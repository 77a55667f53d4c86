# SPDX-License-Identifier: Apache-2.0
"""An S3 server that fails one call in twenty, and buckets that are filled and read without these faults."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.faulty_s3 import Fault, by_seed, faulty
from tests.support.s3_server import S3Server, serving

from .places import Bucket, backend

SHARE = 0.05
FAULTS = (
    Fault.ERROR_500,
    Fault.ERROR_503,
    Fault.SLOW,
    Fault.CUT_REQUEST,
    Fault.CUT_ANSWER,
    Fault.LOST,
)
"""Not the silent ones: a client gives up on each of those only after its minute."""


@contextmanager
def faulty_lake(seed: int = 0) -> Iterator[S3Server]:
    """Serve S3 behind a proxy that fails `SHARE` of the calls."""
    with serving() as server, faulty(server, by_seed(seed, SHARE, FAULTS)) as proxy:
        yield proxy.api


def bucket_with(lake: S3Server, source: Path) -> tuple[str, Bucket]:
    """Make a bucket with the files of a folder; return their URI, and the place of the destination."""
    name = f"chaos-{uuid.uuid4().hex[:8]}"
    backend().create_bucket(name, "us-east-1")
    for file in source.iterdir():
        backend().put_object(name, f"source/{file.name}", file.read_bytes())
    return f"s3://{name}/source/", Bucket(lake, name, "destination")
