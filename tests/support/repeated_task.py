# SPDX-License-Identifier: Apache-2.0
"""One task that repeats a whole job in this process, with a log of its engines' requests: on a Ray, or, after
:func:`~tests.support.whole_job.without_cluster`, with one replica and no cluster.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.folder import folder as folder_at
from tests.support.engine_log import Engine, engines
from tests.support.s3_server import S3Server
from tests.support.specs import TASK, asking
from tests.support.specs import spec as spec_of

ROWS = 400


class RepeatedTask:
    """One task, its input and its destination.

    :param s3: server that holds the destination; by default it is in `folder`.
    """

    def __init__(self, folder: Path, s3: S3Server | None = None) -> None:
        self.folder = folder
        self._credentials = None if s3 is None else s3.credentials
        self._place = str(folder) if s3 is None else f"s3://{s3.new_bucket()}"
        self.events: list[Any] = []
        self._submissions = 0
        self._requests = folder / "requests"

    def input(self, texts: Sequence[str], limits: Sequence[int] | None = None) -> None:
        """Write a row for each text.

        :param limits: `max_tokens` of each row, in the column `sampling`.
        """
        rows: list[dict[str, Any]] = [{"id": f"r{n}", "text": text} for n, text in enumerate(texts)]
        if limits is not None:
            rows = [{**row, "sampling": {"max_tokens": most}} for row, most in zip(rows, limits, strict=True)]
        (self.folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(
        self,
        token: str = "token",
        run_id: str = "r1",
        on_commit: Callable[[], None] | None = None,
        stops: bool = False,
        **fields: Any,
    ) -> BatchManifest:
        """Run a new submission of the task, for the run that `token` names.

        :param run_id: another one is another task, with a folder of its own.
        :param on_commit: called at the `committed` event.
        :param stops: whether the job is stopped at its first finished rows.
        """
        from airflow_provider_raybatch.job.phases.driver import run

        document: dict[str, Any] = {
            "source": [str(self.folder / "in.jsonl")],
            "engine": "echo",
            "sampling": {"temperature": 0},
            **asking("{row.text}", fields),
            "destination": self._uri("out" if run_id == "r1" else run_id),
            "submission": {
                "task": {**TASK, "run_id": run_id},
                "run_token": token,
                "submission_id": f"raybatch-{token}-{self._submissions}",
            },
            **fields,
        }
        self._submissions += 1
        if document["engine"] == "echo":
            document["engine_args"] = {**document.get("engine_args", {}), "request_log": str(self._requests)}
        self.events.clear()
        spec = spec_of(**document)
        assert spec.submission is not None

        def emit(event: Any) -> None:
            self.events.append(event)
            if event.event == "committed" and on_commit is not None:
                on_commit()
            if event.event == "progress" and event.done and stops:
                control.stop()  # as Ray's SIGTERM does, in this thread

        control = Control(spec, emit)
        summary = run(spec, spec.submission, emit, Secrets(aws=self._credentials), control)
        folder, _, name = summary.manifest_uri.rpartition("/")
        return parse(BatchManifest, folder_at(folder, self._credentials).read(name))

    def _uri(self, name: str) -> str:
        return f"{self._place}/{name}"

    def refused(self, ends: FailureClass, **fields: Any) -> str:
        with pytest.raises(RaybatchError) as caught:
            self.run(**fields)
        assert caught.value.failure_class is ends, caught.value
        return str(caught.value)

    def stopped(self, hangs: str | None, **fields: Any) -> None:
        """Run the task, and stop its job at the first finished rows.

        :param hangs: a request whose prompt contains this is never answered, so that no machine is so slow
            that the job is done before. None where the engine goes to the next job: it has to be slow enough.
        """
        from airflow_provider_raybatch.job.run import supervision

        if hangs is not None:
            fields["engine_args"] = {**fields.get("engine_args", {}), "hang_pattern": hangs}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(supervision, "_PROGRESS_EVERY", 0.2)
            self.refused(FailureClass.CANCELLED, **fields, stops=True)

    def kept(self) -> int:
        """Return the number of good rows in all parts so far."""
        return sum(sum(part["ok"].to_pylist()) for part in self._parts(["ok"]))

    def _parts(self, columns: list[str]) -> Iterator[pa.Table]:
        folder = self.out
        for entry in folder.list("_raybatch/parts"):
            if entry.path.endswith(".parquet"):
                yield pq.read_table(io.BytesIO(folder.read(entry.path)), columns=columns)

    def kept_requests(self) -> int:
        """Return the number of distinct requests that have a good answer in a part so far."""
        keys = (part["key"].filter(part["ok"]).to_pylist() for part in self._parts(["ok", "key"]))
        return len({key for some in keys for key in some if key is not None})  # a step may be left out

    def asked(self, manifest: BatchManifest) -> int:
        """Return the requests that engines of a manifest's submission have started, by their own log."""
        return sum(len(engine.asked) for engine in self.engines_of(manifest))

    def all_asked(self) -> list[str]:
        """Return the texts of all requests that engines have started, of all submissions."""
        return [text for engine in engines(self._requests) for text, _ in engine.asked]

    def engines_of(self, manifest: BatchManifest) -> list[Engine]:
        """Return the engines that had rows of a manifest's submission."""
        found = engines(self._requests)
        return [one for one in found if one.submission == manifest.submission_id and one.asked]

    def notices(self) -> list[str]:
        return [event.text() for event in self.events if event.event == "notice"]

    def asked_in_all(self) -> int:
        """Return the number of requests that all engines have started so far."""
        return sum(len(engine.asked) for engine in engines(self._requests))

    @property
    def out(self) -> Folder:
        return folder_at(self._uri("out"), self._credentials)


def rows_of(manifest: BatchManifest, folder: Folder | None = None) -> list[dict[str, Any]]:
    folder = folder or folder_at(manifest.uri.rpartition("/data/")[0])
    paths = (f"{manifest.uri.removeprefix(folder.uri)}/{file.path}".lstrip("/") for file in manifest.files)
    tables = [pq.read_table(io.BytesIO(folder.read(path))) for path in paths]
    return [row for table in tables for row in table.to_pylist()]


def letters_of(manifest: BatchManifest) -> list[dict[str, Any]]:
    (file,) = Path(manifest.dead_letter_uri or "").iterdir()
    return [json.loads(line) for line in file.read_text().splitlines()]


def answers(manifest: BatchManifest, folder: Folder | None = None) -> dict[str, str]:
    rows = rows_of(manifest, folder)
    assert len({row["id"] for row in rows}) == len(rows) == manifest.counts.ok
    return {row["id"]: row["response"] for row in rows}


def assert_whole(manifest: BatchManifest, texts: Sequence[str], folder: Folder | None = None) -> None:
    """Each row of the input has its text as answer, in the order of the input."""
    assert answers(manifest, folder) == {f"r{number}": text for number, text in enumerate(texts)}
    assert [row["id"] for row in rows_of(manifest, folder)] == [f"r{number}" for number in range(len(texts))]
