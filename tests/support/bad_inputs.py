# SPDX-License-Identifier: Apache-2.0
"""Jobs over inputs that are wrong in part or as a whole, from the spec file to the driver's last event."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.layout import JOURNAL, PARTS, REPORT_DATA, REPORT_PAGE
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.report import parse_report
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import dead_letters, rows_of
from tests.support.specs import asking

KEY = "ab" * 32
TASK = {"dag_id": "tägliche_berichte", "run_id": "r1 日本", "task_id": "größe"}
"""Airflow's names may have any letter; Ray's metrics take ASCII alone."""
SUBMISSION = {"task": TASK, "run_token": "token", "submission_id": "raybatch-x-0"}
GOOD = [{"id": number, "text": f"row {number}"} for number in range(20)]
FIELDS = "|".join([*BatchInferenceSpec.model_fields, "credentials"])
"""The beginning of an error: the field that the user set, or a part of it."""


class Place:
    """Input and output of a job.

    :param modules: a folder from which this process and the workers import.
    :ivar emitted: events of the last job.
    :ivar printed: what the driver of a refused job has printed.
    """

    def __init__(self, folder: Path, modules: Path) -> None:
        self.folder = folder
        self.modules = modules
        self.out = folder / "out"
        self.emitted: list[Any] = []
        self.printed = ""

    def file(self, name: str, content: bytes | str) -> list[str]:
        """Write a file; return a source of it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [str(path)]

    def jsonl(self, *rows: Any) -> list[str]:
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        return self.file("in.jsonl", "".join(f"{line}\n" for line in lines))

    def function(self, body: str) -> str:
        """Write a user's module; return the import path of its function `make`."""
        name = f"bad_prompts_{self.folder.name}_{abs(hash(body))}"
        (self.modules / f"{name}.py").write_text(body)
        importlib.invalidate_caches()
        return f"{name}:make"

    def document(self, **fields: Any) -> dict[str, Any]:
        source = {} if "source" in fields else {"source": self.jsonl(*GOOD)}
        return {
            **asking("{row.text}", fields),
            "model": "echo",
            "engine": "echo",
            "destination": str(self.out),
            "submission": SUBMISSION,
            **source,
            **fields,
        }

    def run(self, **fields: Any) -> BatchManifest:
        """Run the job, from spec to manifest."""
        from airflow_provider_raybatch.job.phases.driver import run

        spec = parse(BatchInferenceSpec, json.dumps(self.document(**fields)))
        assert spec.submission is not None
        self.emitted.clear()
        summary = run(spec, spec.submission, self.emitted.append)
        return parse(BatchManifest, Path(summary.manifest_uri).read_bytes())

    def refused(self, **fields: Any) -> events.Failed:
        """Run the job as its driver does, from the spec file to the `failed` event, and return that."""
        import ray

        from airflow_provider_raybatch.job.control import process
        from airflow_provider_raybatch.job.phases import driver

        path = self.folder.with_suffix(".spec")  # beside the sources of cases
        path.write_text(json.dumps(self.document(**fields)))
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setattr(ray, "init", lambda **_: None)  # this process is already connected, or needs none
            patch.setattr(process, "EventWriter", _signing_speaker)
            # This is not the driver's process.
            patch.setattr(process, "stop_on_sigterm", lambda control: None)
            assert driver.main([str(path)]) == 1
        self.printed = printed.getvalue()
        found = [events.read_line(line, KEY) for line in self.printed.splitlines()]
        self.emitted[:] = [one.event for one in found if one is not None]
        failed = self.emitted.pop()
        assert isinstance(failed, events.Failed)
        return failed

    def dead_letters(self, manifest: BatchManifest) -> dict[int, dict[str, Any]]:
        """Return the dead letters by ordinal."""
        letters = dead_letters(LocalFolder(str(self.out)), manifest)
        return {letter["ordinal"]: letter for letter in letters}

    def rows(self, manifest: BatchManifest) -> list[dict[str, Any]]:
        return rows_of(LocalFolder(str(self.out)), manifest)

    def assert_nothing_happened(self) -> None:
        """Check that no engine started, and that no files are there but the journal and reports."""
        phases = [event.phase for event in self.emitted if isinstance(event, events.Phase)]
        # Preflight has several, and one more each half minute of a long step.
        assert set(phases) <= {"preflight", "waiting"}
        files = {path.relative_to(self.out) for path in self.out.rglob("*") if path.is_file()}
        reports = {file for file in files if file.match(f"{PARTS}/*/{REPORT_DATA}")}
        for file in reports:
            report = parse_report((self.out / file).read_bytes(), file.name)
            assert (report.state, report.samples, report.uri) == ("failed", [], None)
        pages = {file.with_name(REPORT_PAGE) for file in reports}
        assert all(file.is_relative_to(JOURNAL) for file in files - reports - pages)


def _signing_speaker() -> Any:
    """Return the writer of a driver that already has its key, so that earlier failures are events, too."""
    from airflow_provider_raybatch.job.control.control import EventWriter

    writer = EventWriter()
    writer.sign(KEY)
    return writer


def assert_one_sentence(
    error: RaybatchError | events.Failed, *fragments: str, ends: FailureClass = FailureClass.USER_ERROR
) -> None:
    """Check the form of a refusal: field, value and remedy.

    :param fragments: parts of the sentence.
    """
    sentence = error.message if isinstance(error, events.Failed) else str(error)
    assert re.match(rf"({FIELDS})(\.\w+)*: ", sentence), sentence
    assert "\n" not in sentence
    assert "\x1b" not in sentence
    assert sentence.endswith((".", "?")), sentence
    assert len(sentence) < 700
    for part in fragments:
        assert part in sentence, sentence
    assert error.failure_class is ends
