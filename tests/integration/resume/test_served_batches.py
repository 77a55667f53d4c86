# SPDX-License-Identifier: Apache-2.0
"""Batches of the Batch API that end while real replicas answer them: each line is in one file once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.layout import PROGRESS
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.phases.driver import run
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.openai_lines import IN_AND_OUT
from tests.support.programs import ROOT
from tests.support.served_batches import LONG, Batch, a_batch
from tests.support.specs import submitted

LINES = 600
SLOW = {"seconds_per_token": 1.0, "max_num_seqs": 20}
"""A request of two words takes two seconds, so each second ten are answered."""
DRIVER = """
import sys, ray
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.phases.driver import run
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
spec = parse(BatchInferenceSpec, open(sys.argv[2], "rb").read())
run(spec, spec.submission, lambda event: print(event.text(), flush=True))
"""


@pytest.fixture
def batch(tmp_path: Path, ray_here: Any) -> Batch:
    return a_batch(LocalFolder(str(tmp_path / "batch")), tmp_path, LINES)


def spec_of(batch: Batch, number: int = 0) -> BatchInferenceSpec:
    return submitted(
        number,
        **IN_AND_OUT,
        source=[batch.source],
        destination=batch.dataset.uri,
        served_batch={"folder": batch.folder.uri, "expires_at": LONG},
        engine_args={**SLOW, "request_log": f"{batch.folder.uri}/requests"},
        flush_interval=0.5,
        max_restarts=0,
    )


def answer(spec: BatchInferenceSpec) -> list[str]:
    """Run a job here; return what its log says."""
    said: list[str] = []
    assert spec.submission is not None
    run(spec, spec.submission, lambda event: said.append(event.text()))
    return said


def wait_until(condition: Callable[[], Any], seconds: float = 120) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def kept(batch: Batch) -> int:
    """Return how many lines clients see as answered."""
    return 0 if batch.folder.head(PROGRESS) is None else batch.progress()[1]


@contextmanager
def meanwhile(function: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=function)
    thread.start()
    yield
    thread.join()


def assert_ended_midway(batch: Batch, code: str) -> None:
    good, codes = batch.ids()
    assert 0 < len(good) < LINES
    assert sorted([*good, *codes], key=int) == [str(number) for number in range(LINES)]
    assert set(codes.values()) == {code}
    total, completed, failed = batch.progress()
    assert (total, completed, failed) == (LINES, len(good), 0)


def test_cancelled_batch_frees_its_replicas(batch: Batch, ray_here: Any) -> None:
    def cancel() -> None:
        wait_until(lambda: kept(batch))
        batch.decide()

    with meanwhile(cancel):
        answer(spec_of(batch))
    assert_ended_midway(batch, "batch_cancelled")
    wait_until(lambda: ray_here.available_resources().get("CPU") == 2)


@pytest.mark.thorough("a killed driver of a served batch; chaos/batch_api kills one always")
def test_killed_driver_of_a_cancelled_batch_is_resumed(batch: Batch, tmp_path: Path, ray_here: Any) -> None:
    """It dies at once after the cancel; the next one asks nothing more, and starts no engine."""
    document = tmp_path / "spec.json"
    document.write_text(spec_of(batch).model_dump_json())
    address = ray_here.get_runtime_context().gcs_address
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, address, str(document)], cwd=ROOT, start_new_session=True
    ) as driver:
        wait_until(lambda: kept(batch))
        batch.decide()
        os.kill(driver.pid, signal.SIGKILL)
    before = kept(batch)
    said = answer(parse(BatchInferenceSpec, spec_of(batch, 1).model_dump_json()))
    assert_ended_midway(batch, "batch_cancelled")
    assert kept(batch) >= before
    assert not any("engine" in one for one in said)
