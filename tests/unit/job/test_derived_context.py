# SPDX-License-Identifier: Apache-2.0
"""A context length that the job derives reaches engines and manifest, and no request key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.planning.context_length import ContextLength
from airflow_provider_raybatch.job.preflight import ready
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.whole_job import attempt, without_cluster

DERIVED = ModelCheck(length=ContextLength(20, "surely fits", 20), kv_cache_tokens=24)


def test_a_derived_context_reaches_engines_and_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cluster(monkeypatch)
    source = tmp_path / "in.jsonl"
    rows = [{"id": number, "text": "w " * (number * 10)} for number in range(1, 4)]
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    fields = {"prompt": "{row.text}", "sampling": {"max_tokens": 2}, "max_error_fraction": 0.9}
    fields["reuse"] = str(tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(ready, "check_engine", lambda *_: DERIVED)
        first = LocalFolder(str(tmp_path / "first"))
        summary = attempt(first, 0, str(source), **fields)
    assert (summary.rows, summary.errors) == (1, 2)
    assert summary.main_failure is not None
    assert "tokens and max_model_len is 20, which leaves no room for a response" in summary.main_failure
    manifest = BatchManifest.model_validate_json(first.read(layout.NEWEST_MANIFEST))
    assert manifest.plan["max_model_len"] == {"value": 20, "reason": "surely fits"}
    assert manifest.plan["kv_cache_tokens"]["value"] == 24
    again = attempt(LocalFolder(str(tmp_path / "again")), 0, str(source), **fields)
    assert (again.rows, again.reused) == (3, 1)
