# SPDX-License-Identifier: Apache-2.0
"""An S3 server that fails one call in twenty, and access to its contents without these faults."""

from __future__ import annotations

import datetime
import io
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from tests.support.faulty_s3 import Fault, by_seed, faulty
from tests.support.s3_server import serving

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
DESTINATION = "destination"


@dataclass(frozen=True)
class Bucket:
    """A run's bucket in the server of this process, as a `Place`."""

    name: str

    @property
    def destination(self) -> str:
        """URI of the folder for the dataset."""
        return f"s3://{self.name}/{DESTINATION}"

    def put_source(self, folder: Path) -> str:
        """Copy the files of a folder into the bucket; return their URI."""
        for file in folder.iterdir():
            self._bucket_put(f"source/{file.name}", file.read_bytes())
        return f"s3://{self.name}/source/"

    def files(self) -> dict[str, float]:
        """See :class:`~tests.chaos.places.Place`."""
        prefix = f"{DESTINATION}/"
        return {
            key.removeprefix(prefix): one.last_modified.replace(tzinfo=datetime.UTC).timestamp()
            for key, one in self._keys().items()
            if key.startswith(prefix)
        }

    def read(self, path: str) -> bytes:
        """See :class:`~tests.chaos.places.Place`."""
        return bytes(self._keys()[f"{DESTINATION}/{path}"].value)

    def rows(self, uri: str) -> list[dict[str, Any]]:
        """Return every row of every Parquet file below a URI in the bucket."""
        prefix = uri.removeprefix(f"s3://{self.name}/").rstrip("/") + "/"
        found = (one.value for key, one in sorted(self._keys().items()) if key.startswith(prefix))
        return [row for content in found for row in pq.ParquetFile(io.BytesIO(content)).read().to_pylist()]

    def _bucket_put(self, key: str, content: bytes) -> None:
        _backend().put_object(self.name, key, content)

    def _keys(self) -> dict[str, Any]:
        while True:
            try:
                return dict(_backend().buckets[self.name].keys.items())
            except RuntimeError:  # a writer changed it meanwhile
                continue


@dataclass(frozen=True)
class Lake:
    """The address of the server for clients."""

    url: str

    def connection(self) -> Mapping[str, Any]:
        """The fields of an Airflow connection of type ``aws``."""
        extra = {"endpoint_url": self.url, "region_name": "us-east-1"}
        return {"login": "key", "password": "secret", "extra": extra}

    def new_bucket(self) -> Bucket:
        name = f"chaos-{uuid.uuid4().hex[:8]}"
        _backend().create_bucket(name, "us-east-1")
        return Bucket(name)


@contextmanager
def faulty_lake(seed: int = 0) -> Iterator[Lake]:
    """Serve S3 behind a proxy that fails `SHARE` of the calls."""
    with serving() as server, faulty(server, by_seed(seed, SHARE, FAULTS)) as proxy:
        yield Lake(proxy.api.url)


def _backend() -> Any:
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
