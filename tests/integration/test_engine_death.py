# SPDX-License-Identifier: Apache-2.0
"""A real vLLM engine dies in the middle of a job: it restarts, and pays for no finished row twice."""

from __future__ import annotations

import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.engine_process.server import TITLE
from airflow_provider_raybatch.job.parts.part import listed
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.ray_processes import ray_processes, vllm_engines
from tests.support.specs import submitted

from .end_to_end.waiting import wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = Path(__file__).parents[2] / "dags_examples/demo_model/model"
# Answers are long, so that the job outlasts a killer that is late on a busy machine.
ROWS, TOKENS, BATCH, AT_ONCE = 120, 160, 8, 16


def evidence() -> str:
    return "\n".join(command[:200] for command in ray_processes().values())


def asked(ray: Any) -> int:
    """Count vLLM's requests by the logs of this process's Ray workers."""
    logs = Path(ray._private.worker.global_worker.node.get_logs_dir_path())
    return sum(
        len(re.findall(r"Added request \S+\.\n", log.read_text(errors="replace")))
        for log in logs.glob("worker-*")
    )


@pytest.mark.parametrize(
    ("victim", "dies_of", "repeated"),
    [
        pytest.param("EngineCore", signal.SIGKILL, AT_ONCE, id="engine"),
        # It has the answers that are not written yet.
        pytest.param(
            TITLE,
            signal.SIGSEGV,
            2 * AT_ONCE,
            id="front end",
            marks=pytest.mark.thorough("a dead front end of vLLM; a dead engine runs always"),
        ),
    ],
)
def test_rows_that_were_written_are_not_asked_again(
    tmp_path: Path, ray_here: Any, victim: str, dies_of: signal.Signals, repeated: int
) -> None:
    from airflow_provider_raybatch.job.phases.driver import run

    sums = [f"What is {number % 10} plus {number // 10 % 10}?" for number in range(ROWS)]
    rows = [{"id": number, "text": text} for number, text in enumerate(sums)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = submitted(
        source=[str(tmp_path / "in.jsonl")],
        prompt="{row.text}",
        model=str(MODEL),
        engine="vllm",
        # Each row is generated, and none ends early.
        sampling={"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True},
        deduplicate=False,
        batch_size=BATCH,
        rows_in_flight=AT_ONCE,
        flush_interval=0.1,
        engine_args={"enable_log_requests": True},
        destination=str(tmp_path / "out"),
    )

    def kill_in_the_middle() -> int:
        """Kill the engine once there is a part; return how many rows were written by then."""
        ledger = LocalFolder(str(tmp_path / "out"))
        wait_for("an engine", vllm_engines, 200, evidence)
        wait_for("parts", lambda: listed(ledger.list("_raybatch/parts")), 200, evidence, pause=0.05)
        (process,) = vllm_engines(victim)
        process.send_signal(dies_of)
        return sum(part.ok for part in listed(ledger.list("_raybatch/parts")))

    assert not vllm_engines()
    before = asked(ray_here)
    with ThreadPoolExecutor(1) as pool:
        killer = pool.submit(kill_in_the_middle)
        summary = run(spec, spec.submission, lambda event: None)
        written = killer.result()
    manifest = parse(BatchManifest, Path(summary.manifest_uri).read_bytes())
    table = pq.read_table(manifest.uri)
    assert sorted(table["id"].to_pylist()) == list(range(ROWS))
    assert manifest.counts.ok == ROWS
    assert 0 < written < ROWS - AT_ONCE  # the kill came in the middle
    assert len(manifest.replicas) == 2
    assert ROWS < asked(ray_here) - before <= ROWS + repeated
