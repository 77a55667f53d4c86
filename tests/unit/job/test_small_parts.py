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

from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.job.control.private_package import environment, fetch
from airflow_provider_raybatch.job.engine.gpu import GpuMeter


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
from airflow_provider_raybatch.job.engine.own_log import OwnLog
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
