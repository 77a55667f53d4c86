# SPDX-License-Identifier: Apache-2.0
"""The stores of a run, on disk or in S3, read without the code under test."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.secrets import AwsCredentials
from tests.support.s3_server import S3Server


class Place(Protocol):
    """A folder for one run."""

    @property
    def uri(self) -> str: ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables with which a job reaches it."""

    @property
    def credentials(self) -> AwsCredentials | None: ...

    def contents(self, prefix: str) -> dict[str, bytes]:
        """Return all files whose paths have this prefix, by path."""


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

    def contents(self, prefix: str) -> dict[str, bytes]:
        files = {file.relative_to(self.root).as_posix(): file for file in self.root.rglob("*")}
        return {
            path: file.read_bytes()
            for path, file in sorted(files.items())
            if path.startswith(prefix) and not file.name.startswith(".") and file.is_file()
        }


@dataclass(frozen=True)
class Bucket:
    """A prefix of a bucket."""

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

    def contents(self, prefix: str) -> dict[str, bytes]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{self.prefix}/{prefix}"
        )
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return {
            key[len(self.prefix) + 1 :]: self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            for key in keys
        }

    @cached_property
    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.server.url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )


def place(store: str, server: S3Server, bucket: str, folder: Path, name: str) -> Place:
    """Return a new place in `folder`, or in a bucket."""
    return (
        Disk(folder / name) if store == "disk" else Bucket(server, bucket, f"{uuid.uuid4().hex[:8]}/{name}")
    )


@dataclass(frozen=True)
class Published:
    """The published state that readers of a destination find.

    :param commits: run tokens of the journal's commits, oldest first.
    :param uri: uri of the dataset that the last entry names.
    :param copied: whether ``manifest.json`` is the manifest that the last entry names.
    :param rows: rows of all files in that dataset's folder.
    """

    commits: tuple[str, ...]
    uri: str | None
    copied: bool
    rows: tuple[str, ...]

    @property
    def dataset(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.rows]


def published(destination: Place) -> Published:
    """Read the present state of a destination."""
    journal = [json.loads(entry) for entry in destination.contents("_raybatch/journal/").values()]
    commits = tuple(entry["run_token"] for entry in journal if entry["kind"] == "commit")
    if not journal or journal[-1]["published"] is None:
        return Published(commits, None, False, ())
    path = journal[-1]["published"]["manifest"]
    manifest = destination.contents(path)[path]
    copy = destination.contents("manifest.json").get("manifest.json")
    uri = json.loads(manifest)["uri"]
    files = destination.contents(uri.removeprefix(f"{destination.uri}/") + "/")
    rows = [row for content in files.values() for row in pq.read_table(io.BytesIO(content)).to_pylist()]
    return Published(commits, uri, copy == manifest, tuple(json.dumps(row) for row in rows))
