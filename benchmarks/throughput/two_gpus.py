# SPDX-License-Identifier: Apache-2.0
"""One job with one replica and with two, beside vLLM's ``LLM``: how close two GPUs come to twice the speed.

Runs W1 and W2 (`workloads.py`) on a machine with two GPUs. First the job with one replica has the first GPU
and `llm_generate.py` the second one, then the job has both. Each job starts new engines and its own Ray, so
runs are independent. Prints a JSON line per run as it ends, and `ratios` at the end.

usage: two_gpus.py DATA_FOLDER OUT_FOLDER [ENGINE_ARGS_JSON] [WORKLOAD ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def main() -> None:
    if sys.argv[1] == "--job":
        data, out, name, replicas, engine, fields = sys.argv[2:]
        job(
            Path(data),
            Path(out),
            name,
            int(replicas),
            {"engine_args": json.loads(engine), **json.loads(fields)},
        )
        return
    data, out, *rest = sys.argv[1:]
    engine = rest.pop(0) if rest and rest[0].startswith("{") else '{"load_format": "dummy"}'
    names = rest or ["W1", "W2"]
    Path(out).mkdir(parents=True, exist_ok=True)
    ceiling = [sys.executable, str(HERE / "llm_generate.py"), data, *names, engine]
    beside = subprocess.Popen(ceiling, env=environment("1"), stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = {}
    for name in names:
        found[f"one {name}"] = measured(data, out, name, 1, engine, "0")
    for line in beside.communicate()[0].splitlines():
        if line.startswith("RESULT "):
            print(line, flush=True)
            result = json.loads(line.removeprefix("RESULT "))
            found[f"{result['system']} {result['workload']}"] = result["seconds"]
    for name in names:
        found[f"two {name}"] = measured(data, out, name, 2, engine, "0,1")
    ratios = {f"two GPUs, {name}": found[f"one {name}"] / found[f"two {name}"] for name in names}
    ratios |= {
        f"one GPU to {system}, {name}": found[f"{system} {name}"] / found[f"one {name}"]
        for name in names
        for system in ("LLM.generate", "LLM.chat")
        if f"{system} {name}" in found
    }
    print("RESULT", json.dumps({"seconds": found, "ratios": {k: round(v, 3) for k, v in ratios.items()}}))


def environment(gpus: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "CUDA_VISIBLE_DEVICES": gpus, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


SAMPLING_OF_ROWS = '{"sampling_column": "sampling"}'


def measured(
    data: str, out: str, name: str, replicas: int, engine: str, gpus: str, fields: str = SAMPLING_OF_ROWS
) -> float:
    """Return the seconds from the first request to the last finished row.

    :param fields: further fields of the spec, as JSON.
    """
    command = [sys.executable, __file__, "--job", data, out, name, str(replicas), engine, fields]
    log = Path(out) / f"{name}-{replicas}.log"
    with log.open("w") as errors:
        output = subprocess.run(
            command, env=environment(gpus), stdout=subprocess.PIPE, stderr=errors, text=True, check=False
        ).stdout
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(
            f"{name} with {replicas} replicas failed:\n{output[-3000:]}\n{log.read_text()[-3000:]}"
        )
    print(lines[0], flush=True)
    seconds: float = json.loads(lines[0].removeprefix("RESULT "))["seconds"]
    return seconds


def job(data: Path, out: Path, name: str, replicas: int, fields: dict[str, Any]) -> None:
    start_ray(replicas)
    print("RESULT", json.dumps(result(data, out, name, replicas, fields)), flush=True)


REPLICA = (
    *("rows", "output_tokens", "gpus"),
    *("startup_seconds", "began_seconds", "ended_seconds", "cpu_seconds"),
)


def start_ray(gpus: int) -> None:
    import ray

    ray.init(
        address="local",
        num_gpus=gpus,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        logging_level="error",
    )


def result(data: Path, out: Path, name: str, replicas: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Run a job on the Ray of this process, and return what it took."""
    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.phases.driver import run

    place = out / f"{name}-{replicas}-{time.time_ns()}"
    document = {
        "source": [str(data / name)],
        "messages_column": "messages",
        "model": str(data / "model"),
        "replicas": replicas,
        **fields,
        "destination": str(place),
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": place.name, "task_id": name},
            "run_token": "token",
            "submission_id": f"raybatch-{place.name}-0",
        },
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    assert spec.submission is not None
    began = time.time()
    summary = run(spec, spec.submission, lambda event: print(event.text(), flush=True))
    manifest = json.loads(Path(summary.manifest_uri).read_text())
    return {
        **outcome(manifest, name),
        "job_seconds": round(time.time() - began, 1),
        "parts": len(list((place / "_raybatch/parts").rglob("*.parquet"))),
    }


def outcome(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    """What a manifest says of the time that a workload took."""
    seconds = manifest["timing"]["generation_seconds"]
    ends = [one["ended_seconds"] for one in manifest["replicas"]]
    return {
        "system": f"job, {len(ends)} replicas",
        "workload": name,
        "rows": manifest["counts"]["ok"],
        "input_tokens": manifest["tokens"]["input"],
        "cached_tokens": manifest["tokens"]["cached"],
        "output_tokens": manifest["tokens"]["output"],
        "filled_tokens": manifest["tokens"]["filled"],
        "seconds": seconds,
        "replicas": [{name: one[name] for name in REPLICA} for one in manifest["replicas"]],
        "stages": manifest["stages"],
        "ratios": {"ends_within": round((max(ends) - min(ends)) / seconds, 3)},
    }


if __name__ == "__main__":
    main()
