# SPDX-License-Identifier: Apache-2.0
"""No engine starts before all is checked, and a run has one date."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.layout import JOURNAL
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.planning.plan import ClusterView
from airflow_provider_raybatch.job.preflight.check import Facts
from airflow_provider_raybatch.job.preflight.checked_job import with_time
from airflow_provider_raybatch.job.preflight.input_check import SampledRows
from airflow_provider_raybatch.job.preflight.memory_check import model_sizes
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.storage.folder import Folder, folder
from tests.support.clusters import DGX, HEAD
from tests.support.model_configs import SHAPES
from tests.support.services import services_of
from tests.support.specs import spec, submitted

driver = pytest.importorskip("airflow_provider_raybatch.job.phases.driver")
engine_check = pytest.importorskip("airflow_provider_raybatch.job.preflight.engine_check")


class LaunchLog:
    """Records whether engines were let start."""

    def __init__(self) -> None:
        self.loads = 0

    def early(self, *_: Any) -> None:
        pass

    def load(self, model: Any) -> None:
        self.loads += 1


def check_engine(job: Any, emit: Any, launch: LaunchLog) -> None:
    """Do the driver's steps from the start of replicas to that of their engines, for five rows."""
    journal = SimpleNamespace(folder=None, began_before=lambda: False, run_began=lambda: None)
    services = services_of(job, emit, journal=journal, launch=launch)
    facts = Facts(job, services, SampledRows([], [], 0), Source(None, None, [], None, 5))
    driver.JobPhases(job, services, None).check_engine(facts, 5)


@pytest.mark.parametrize(
    ("shape", "engine", "refused", "loads"),
    [
        ("70B", "vllm", True, 0),
        ("8B", "vllm", False, 1),
        ("70B", "ray_data_llm", False, 1),
        (None, "vllm", False, 1),
    ],
)
def test_no_engine_starts_for_a_model_that_no_gpu_holds(
    monkeypatch: pytest.MonkeyPatch, shape: str | None, engine: str, refused: bool, loads: int
) -> None:
    sizes = None if shape is None else model_sizes(SHAPES[shape], None, None)
    monkeypatch.setattr(engine_check, "_checked_model", lambda *_: ModelCheck(context=400, sizes=sizes))
    monkeypatch.setattr(driver, "wait_for_engine_node", lambda *_: None)
    monkeypatch.setattr(engine_check.cluster_view, "view", lambda: ClusterView((DGX,)))
    job, notices, launch = spec(engine=engine, model="acme/large"), [], LaunchLog()
    if refused:
        with pytest.raises(PreflightError, match=r"^model: the weights of 'acme/large' take 131\.4 GiB"):
            check_engine(job, notices.append, launch)
    else:
        check_engine(job, notices.append, launch)
    assert launch.loads == loads
    assert [notice.message[:8] for notice in notices] == (["memory: "] if shape == "8B" else [])


@pytest.mark.parametrize("has_vllm", [True, False])
def test_missing_gpus_are_refused_before_the_model(monkeypatch: pytest.MonkeyPatch, has_vllm: bool) -> None:
    monkeypatch.setattr(engine_check, "vllm_is_here", lambda: has_vllm)
    monkeypatch.setattr(engine_check.cluster_view, "view", lambda: ClusterView((HEAD,)))
    monkeypatch.setattr(engine_check.cluster_view, "gpu_node", lambda _: None)
    job = spec(engine="vllm", model="/no/such/model", num_gpus=1)
    with pytest.raises(PreflightError, match=r"^num_gpus: the job asks for 1 replica"):
        check_engine(job, lambda _: None, LaunchLog())


def claimed_the_day_before(destination: Folder, at: float) -> None:
    """Date the first claim back."""
    path = f"{JOURNAL}/00000001.json"
    first = json.loads(destination.read(path))
    first["at"] = datetime.datetime.fromtimestamp(at, datetime.timezone.utc).isoformat()
    destination.write(path, json.dumps(first).encode())


def test_the_date_of_a_run_is_that_of_its_first_claim(tmp_path: Path) -> None:
    """A retry on the next day prints the first day's date, so that its keys and parts are the same."""
    before = datetime.datetime.now(datetime.timezone.utc).timestamp()
    first = submitted(0, "token")
    destination = folder(str(tmp_path), None)
    journal = Journal(destination, first.submission, take_over=False)
    assert journal.run_began() is None
    assert with_time(first, journal).template_time >= before
    journal.claim()

    retry = Journal(destination, submitted(1, "token").submission, take_over=False)
    began = retry.run_began()
    assert began is not None
    assert before - 1 <= began <= datetime.datetime.now(datetime.timezone.utc).timestamp()
    began -= 24 * 3600
    claimed_the_day_before(destination, began)
    retry.claim()
    assert retry.run_began() == began
    timed = with_time(first, retry)
    assert timed.template_time == began
    assert (timed.response_digest, timed.fingerprint) == (first.response_digest, first.fingerprint)
    # Another run of the task has a date of its own.
    assert Journal(destination, submitted(2, "cleared").submission, take_over=False).run_began() is None
