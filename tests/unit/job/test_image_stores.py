# SPDX-License-Identifier: Apache-2.0
"""Whole jobs whose images lie in a store that refuses them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.job.driver import run
from tests.support.engine_log import engines
from tests.support.reading import as_jsonl
from tests.support.refusing_s3 import answering
from tests.support.s3_server import S3Server
from tests.support.specs import submitted
from tests.support.whole_job import without_cluster

pytest.importorskip("obstore")
pytest.importorskip("PIL")


@pytest.fixture(autouse=True)
def _without_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cluster(monkeypatch)


def ask_about(folder: Path, server: S3Server, place: str, **fields: Any) -> Any:
    """Run a job over a picture in a bucket; its rows and its dataset are on the disk."""
    (folder / "in.jsonl").write_bytes(as_jsonl([{"image": place}]))
    spec = submitted(
        0,
        source=[str(folder / "in.jsonl")],
        destination=f"{folder}/out",
        prompt="What is that?",
        images="image",
        image_roots=["s3://lake/img"],
        engine="echo",
        engine_args={"request_log": str(folder / "log")},
        **fields,
    )
    assert spec.submission is not None
    return run(spec, spec.submission, lambda event: None, Secrets(aws=server.credentials))


@pytest.mark.parametrize("deduplicate", [True, False])
def test_wrong_keys_fail_the_job_and_no_row(tmp_path: Path, deduplicate: bool) -> None:
    """Those of the source are its own; here it lies on a disk."""
    fields: dict[str, Any] = {"deduplicate": deduplicate, "max_errors": 9}
    answer = "<Error><Code>InvalidAccessKeyId</Code></Error>"
    with answering(403, answer) as url, pytest.raises(RaybatchError) as caught:
        ask_about(tmp_path, S3Server(url), "s3://lake/img/1.png", **fields)
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert str(caught.value).startswith("images: s3://lake/img")
    assert "the credentials are refused (InvalidAccessKeyId); check aws_conn_id" in str(caught.value)
    assert not any(engine.asked for engine in engines(tmp_path / "log"))
