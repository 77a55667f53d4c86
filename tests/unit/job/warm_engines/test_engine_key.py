# SPDX-License-Identifier: Apache-2.0
"""Which warm engine a job can use."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.job.planning.plan import ClusterView, make
from airflow_provider_raybatch.job.warm_engines import registry as module
from airflow_provider_raybatch.job.warm_engines.source import OWN_ENGINES
from airflow_provider_raybatch.job.warm_engines.warm_source import WarmEngineSource, engine_source
from tests.support.specs import TASK, submitted

RUNTIME_ENV = {"py_modules": ["gcs://provider.zip"], "working_dir": "gcs://spec.zip"}


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The runtime environment of the job."""
    runtime_env = dict(RUNTIME_ENV)
    context = SimpleNamespace(runtime_env=runtime_env)
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: context)
    return runtime_env


def key(environment: dict[str, SecretStr] | None = None, gpus: float = 1, **fields: Any) -> str:
    spec = submitted(**{"keep_warm": 60, **fields})
    plan = replace(make(spec, 8, ClusterView(({"CPU": 8.0, "GPU": 8.0},))), gpus=gpus)
    found = engine_source(spec, environment or {}, plan)
    assert isinstance(found, WarmEngineSource)
    return found.key.digest


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "Judge {row.text}"},
        {"sampling": {"temperature": 1, "max_tokens": 5}},
        {"keep_warm": 0},
        {"destination": "/data/other"},
        {"task": {**TASK, "dag_id": "another", "run_id": "r2"}},
        {"chat_template": "x"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_only_decides_the_requests_does_not_count(fields: dict[str, Any]) -> None:
    assert key(**fields) == key()


def test_engines_get_other_adapters_of_the_same_number() -> None:
    assert key(adapter="/adapters/a") == key(adapter="s3://b/adapters/b")


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "/models/other"},
        {"model_task": "embed"},
        {"adapter": "/adapters/a"},  # an engine has room for as many as its first job has
        {"engine_args": {"max_num_seqs": 7}},
        {"gpus": 2},
        {"gpus": 0.5},
        {"accelerator_type": "H200"},
        {"task": {**TASK, "namespace": "another Airflow"}},
        {"environment": {"HF_TOKEN": SecretStr("another's")}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_decides_the_engine_and_its_owner_counts(fields: dict[str, Any]) -> None:
    assert key(**fields) != key()


def test_a_secret_is_not_in_the_key() -> None:
    found = key(environment={"HF_TOKEN": SecretStr("hf_secret")})
    assert "hf_secret" not in found
    assert len(found) == 32


@pytest.mark.parametrize(("name", "counts"), [("working_dir", False), ("py_modules", True), ("pip", True)])
def test_of_the_runtime_env_all_but_the_spec_counts(job: dict[str, Any], name: str, counts: bool) -> None:
    before = key()
    job[name] = ["gcs://other.zip"]
    assert (key() != before) is counts


def test_engines_are_not_kept_by_default() -> None:
    spec = submitted()
    assert engine_source(spec, {}, make(spec, 8, ClusterView(({"CPU": 8.0},)))) is OWN_ENGINES


def test_engines_over_several_nodes_are_not_kept() -> None:
    spec = submitted(keep_warm=60)
    plan = replace(make(spec, 8, ClusterView(({"CPU": 8.0},))), spans_nodes=True)
    assert engine_source(spec, {}, plan) is OWN_ENGINES
