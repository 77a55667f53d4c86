# SPDX-License-Identifier: Apache-2.0
"""A run's folders, on a disk or in S3, read from outside and without the code under test."""

from __future__ import annotations

import datetime
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from airflow_provider_raybatch.contract.secrets import AwsCredentials
from tests.support.s3_server import S3Server

from .workload import requests_of

PHASES = ("before claim", "generating", "publishing", "after commit")
_JOURNAL = "_raybatch/journal/"
_PART = re.compile(r"^_raybatch/parts/.+\.parquet$")


class Place(Protocol):
    """A folder of a run. Times are epoch seconds."""

    @property
    def uri(self) -> str: ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables with which a job reaches it."""

    @property
    def credentials(self) -> AwsCredentials | None: ...

    def files(self) -> dict[str, float]:
        """Return when each file got its name, by its path below the folder."""

    def read(self, path: str) -> bytes:
        """Return a whole file."""


@dataclass(frozen=True)
class Disk:
    """A folder of this machine."""

    root: Path

    @property
    def uri(self) -> str:
        return str(self.root)

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    @property
    def credentials(self) -> AwsCredentials | None:
        return None

    def files(self) -> dict[str, float]:
        found = {}
        for folder, _, names in os.walk(self.root):
            for path in (Path(folder, name) for name in names if not name.startswith(".raybatch-")):
                # A whole file is renamed or linked to its name, which sets this time.
                with suppress(FileNotFoundError):
                    found[str(path.relative_to(self.root))] = path.stat().st_ctime
        return found

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()


@dataclass(frozen=True)
class Bucket:
    """A prefix of a bucket in an S3 server of this process, whose memory is read."""

    server: S3Server
    bucket: str
    prefix: str

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def environment(self) -> Mapping[str, str]:
        return self.server.environment

    @property
    def credentials(self) -> AwsCredentials | None:
        return self.server.credentials

    def files(self) -> dict[str, float]:
        prefix = f"{self.prefix}/"
        return {
            key.removeprefix(prefix): one.last_modified.replace(tzinfo=datetime.UTC).timestamp()
            for key, one in self._keys().items()
            if key.startswith(prefix)
        }

    def read(self, path: str) -> bytes:
        return bytes(self._keys()[f"{self.prefix}/{path}"].value)

    def _keys(self) -> dict[str, Any]:
        while True:
            try:
                return dict(backend().buckets[self.bucket].keys.items())
            except RuntimeError:  # a writer changed it meanwhile
                continue


def backend() -> Any:
    """Return the memory of all S3 servers of this process."""
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]


def contents(place: Place, prefix: str = "") -> dict[str, bytes]:
    """Return all files whose paths have this prefix, by path."""
    return {path: place.read(path) for path in sorted(place.files()) if path.startswith(prefix)}


def rows_at(place: Place, uri: str) -> list[dict[str, Any]]:
    """Return every row of every file in a dataset's folder, without regard to the manifest."""
    files = contents(place, uri.removeprefix(f"{place.uri}/").rstrip("/") + "/").values()
    return [row for content in files for row in pq.ParquetFile(io.BytesIO(content)).read().to_pylist()]


@dataclass(frozen=True)
class Part:
    """A part of the ledger.

    :param prompts: the answered prompts; failed rows have no answer.
    """

    appeared: float
    prompts: frozenset[str]


@dataclass
class Parts:
    """All parts of a destination. Each is read once, because parts never change."""

    place: Place
    _read: dict[str, Part] = field(default_factory=dict)

    def all(self) -> list[Part]:
        for path, appeared in self.place.files().items():
            if _PART.match(path) and path not in self._read:
                self._read[path] = Part(appeared, frozenset(_answered(self.place.read(path))))
        return list(self._read.values())


def _answered(content: bytes) -> Iterator[str]:
    table = pq.ParquetFile(io.BytesIO(content)).read()
    for part in table.filter(table["ok"]).to_pylist():
        if (row := part.get("input")) is None:  # of a first step, whose answers are not cut
            yield part["output"]["response"]
        else:
            yield requests_of(row, "say_response" in row)[-1]


def phase(place: Place) -> str:
    """Return the phase of a task's newest run, by the present content of its folder; one of `PHASES`."""
    files = place.files()
    entries = sorted(path for path in files if path.startswith(_JOURNAL) and path.endswith(".json"))
    if not entries:
        return PHASES[0]
    if json.loads(place.read(entries[-1]))["kind"] == "commit":
        return PHASES[3]
    claimed = files[entries[-1]]
    publishing = any(path.startswith(("data/", "manifests/")) and at > claimed for path, at in files.items())
    return PHASES[2] if publishing else PHASES[1]


@dataclass(frozen=True)
class Published:
    """The published state that readers of a destination find.

    :param commits: run tokens of the journal's commits, oldest first.
    :param uri: uri of the dataset that the last entry names.
    :param copied: whether ``manifest.json`` is the manifest that the last entry names.
    :param rows: of all files in that dataset's folder.
    """

    commits: list[str]
    uri: str | None
    copied: bool
    rows: list[dict[str, Any]]


def published(destination: Place) -> Published:
    """Read the present state of a destination."""
    journal = [json.loads(entry) for entry in contents(destination, _JOURNAL).values()]
    commits = [entry["run_token"] for entry in journal if entry["kind"] == "commit"]
    if not journal or journal[-1]["published"] is None:
        return Published(commits, None, False, [])
    manifest = destination.read(journal[-1]["published"]["manifest"])
    copy = contents(destination, "manifest.json").get("manifest.json")
    uri = json.loads(manifest)["uri"]
    return Published(commits, uri, copy == manifest, rows_at(destination, uri))
