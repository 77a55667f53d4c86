# SPDX-License-Identifier: Apache-2.0
"""Modules too small for a file of tests each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr
from ray.data._internal.metadata_exporter import sanitize_for_struct

from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.control.private_package import environment, fetch
from airflow_provider_raybatch.job.engine.gpu import GpuMeter
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.specs import submitted


def test_a_job_without_a_package_has_no_secrets() -> None:
    assert fetch(None).secrets() == Secrets()


def test_the_hub_token_reaches_the_engine_by_its_environment() -> None:
    assert environment(Secrets(hf_token=SecretStr("hf_x"))) == {"HF_TOKEN": SecretStr("hf_x")}
    assert environment(Secrets()) == {}


class NvmlRefusesError(Exception):
    """Has no importable class: pynvml creates its errors at run time."""


def fake_nvml(refused: str = "") -> SimpleNamespace:
    """A fake pynvml with two GPUs; `refused` names the call that the driver refuses."""
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=40 + 20 * handle),
    }

    def refuse(*args: object) -> None:
        raise NvmlRefusesError("Not Supported")

    refusals = dict.fromkeys(["nvmlDeviceGetHandleByUUID", refused], refuse)
    return SimpleNamespace(**{**answers, **refusals})


class TestUtilisation:
    def test_utilisation_is_the_mean_over_gpus_and_samples(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.measured(monkeypatch, fake_nvml()) == 50.0

    @pytest.mark.parametrize(
        ("refused", "visible"),
        [
            ("nvmlInit", "0,1"),
            ("nvmlDeviceGetCount", None),
            ("nvmlDeviceGetHandleByIndex", "0,1"),
            ("nvmlDeviceGetUtilizationRates", "0,1"),
            ("", "-1"),
        ],
    )
    def test_a_driver_that_refuses_it_stops_nothing(
        self, monkeypatch: pytest.MonkeyPatch, refused: str, visible: str | None
    ) -> None:
        assert self.measured(monkeypatch, fake_nvml(refused), visible) is None

    @staticmethod
    def measured(
        monkeypatch: pytest.MonkeyPatch, nvml: SimpleNamespace, visible: str | None = "0,1"
    ) -> float | None:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        meter = GpuMeter()
        meter.sample()
        meter.sample()
        return meter.mean


LOGGED = """
import sys
from airflow_provider_raybatch.job.engine.vllm_started import OwnLog
print("ValueError: of another engine, earlier", flush=True)
log = OwnLog()
for line in {lines!r}:
    print(line, file=sys.stderr, flush=True)
with open(sys.argv[1], "w") as answer:
    answer.write(str(log.root_cause()))
"""


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            [
                "(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory.",
                "RuntimeError: Engine core initialization failed. See root cause above. Failed procs: {}",
            ],
            "torch.OutOfMemoryError: CUDA out of memory.",
        ),
        (["RuntimeError: Engine core initialization failed. See root cause above."], "None"),
        (["all is well"], "None"),
    ],
)
def test_why_an_engines_process_died_is_found_in_the_log(
    tmp_path: Path, lines: list[str], cause: str
) -> None:
    answer, log = tmp_path / "answer", tmp_path / "log"
    with log.open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", LOGGED.format(lines=lines), str(answer)],
            stdout=file,
            stderr=file,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert answer.read_text() == cause


def test_ray_data_export_of_a_job_shows_no_secret(tmp_path: Path) -> None:
    """Ray Data writes its operators' arguments, including the job, to files and to its dashboard."""
    aws = AwsCredentials(aws_access_key_id=SecretStr("AKIA"), aws_secret_access_key=SecretStr("s3cret"))
    known = Secrets(aws=aws, hf_token=SecretStr("hf_canary"))
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\n')
    spec = submitted(source=[str(source)])
    job = Job(
        spec=spec,
        listing=resolve(spec, None),
        folder=S3Folder("lake", "out", aws),
        part_folder="parts/0",
        keyer=Keyer(spec, {}, Digests()),
        credentials=aws,
        environment=credentials.environment(known),
    )
    exported = str(sanitize_for_struct({"_fn_constructor_args": (job, "coordinator")}, 10_000))
    assert "HF_TOKEN" in exported
    for secret in ("AKIA", "s3cret", "hf_canary"):
        assert secret not in exported
