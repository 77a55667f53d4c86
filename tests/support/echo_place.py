# SPDX-License-Identifier: Apache-2.0
"""A destination for whole jobs of the echo engine, with a log of what was generated for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.engine_log import engines
from tests.support.publishing import dead_letters, rows_of
from tests.support.reading import as_jsonl
from tests.support.specs import asking
from tests.support.whole_job import attempt


class EchoPlace:
    """One source, one destination, one log of requests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = LocalFolder(str(root / "out"))
        (root / "log").mkdir()

    def job(self, number: int, rows: list[dict[str, Any]], **fields: Any) -> BatchManifest:
        """Run a submission over these rows."""
        source = self.root / "in.jsonl"
        source.write_bytes(as_jsonl(rows))
        log = {"request_log": str(self.root / "log")}
        asked = {**asking("{row.text}", fields), "engine_args": log, **fields}
        uri = attempt(self.folder, number, str(source), **asked).manifest_uri
        return parse(BatchManifest, self.folder.read(uri.removeprefix(f"{self.folder.uri}/")))

    def rows(self, manifest: BatchManifest) -> list[dict[str, Any]]:
        return rows_of(self.folder, manifest)

    def letters(self, manifest: BatchManifest) -> list[dict[str, Any]]:
        return dead_letters(self.folder, manifest)

    def generated(self) -> int:
        """Responses of all jobs."""
        return sum(len(engine.generated) for engine in engines(self.root / "log"))
