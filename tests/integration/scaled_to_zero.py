# SPDX-License-Identifier: Apache-2.0
"""A job on a head without GPUs, whose autoscaler may add two nodes with one GPU each; prints its events.

It is a program of its own, because a process has one Ray. Autoscaler and raylets are real, the GPUs are
simulated. Usage: ``scaled_to_zero.py GCS_ADDRESS FOLDER``
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray.autoscaler.v2.sdk import get_cluster_status

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.phases.driver import run
from airflow_provider_raybatch.job.planning import cluster_view, plan
from airflow_provider_raybatch.job.preflight import engine_check
from tests.support.specs import submitted

MODEL = Path(__file__).parents[2] / "dags_examples/demo_model/model"


def main(address: str, folder: Path) -> None:
    ray.init(address=address, log_to_driver=False, logging_level="error")
    try:
        print(json.dumps(seen(address, folder)))
    finally:
        ray.shutdown()


def seen(address: str, folder: Path) -> dict[str, Any]:
    phases: list[str] = []

    def emit(event: Any) -> None:
        if (phase := getattr(event, "phase", None)) is not None:
            phases.append(phase)

    refusal = None
    try:
        with ExitStack() as held:
            cluster_view.wait_for(plan.Plan(1, 1.0, 8, None, 8, 2, {}), None, False, emit, held)
    except PreflightError as error:
        refusal = [error.failure_class, str(error)]

    # The echo engine requests no GPU, and vLLM would need a real one.
    plan._gpus = lambda *_: (1, "set by the test")
    plan._ROWS_FOR_A_NODE = 30
    engine_check.vllm_is_here = lambda: False
    before = cluster_view.gpu_node(None)
    engine_check.wait_for_engine_node(spec(folder, "vllm", str(MODEL)), False, emit)
    checked_on = cluster_view.gpu_node(None)

    job = spec(folder, "echo", "echo")
    assert job.submission is not None
    manifest = parse(BatchManifest, Path(run(job, job.submission, emit).manifest_uri).read_bytes())
    return {
        "refusal": refusal,
        "gpu_nodes": [before is not None, checked_on is not None],
        "phases": phases,
        "planned": manifest.plan["replicas"],
        "nodes": sorted({replica.node for replica in manifest.replicas if replica.rows}),
        "ok": manifest.counts.ok,
        "still_requested": [
            bundle.bundle
            for demand in get_cluster_status(address).resource_demands.cluster_constraint_demand
            for bundle in demand.bundles_by_count
        ],
    }


def spec(folder: Path, engine: str, model: str) -> Any:
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"text": f"a b c {number}"}) + "\n" for number in range(60)))
    slowly = {"engine_args": {"seconds_per_token": 0.3, "max_num_seqs": 1}} if engine == "echo" else {}
    sized = {"batch_size": 3, "rows_in_flight": 3, "destination": str(folder / "out")}
    return submitted(source=[str(source)], prompt="{row.text}", model=model, engine=engine, **sized, **slowly)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
