# SPDX-License-Identifier: Apache-2.0
"""The job that ``RayBatchInferenceOperator`` submits, on the cluster of ``RAY_ADDRESS``, nothing tuned.

`seconds` is the manifest's generation time: from the first request in an engine to the last part on disk, so
it holds reading, tokenising, detokenising and writing besides the engine. Prints one JSON line a workload.

usage: batch_job.py DATA_FOLDER OUT_FOLDER WORKLOAD [WORKLOAD ...] [ENGINE_JSON]
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any


def main() -> None:
    folder, out, *names = sys.argv[1:]
    engine = json.loads(names.pop()) if names[-1].startswith("{") else {}
    for name in names:
        run(Path(folder), Path(out), name, engine)


def run(folder: Path, out: Path, name: str, engine: dict[str, Any]) -> None:
    token = uuid.uuid4().hex
    label = engine.pop("label", "raybatch job")
    spec = {
        "source": {"paths": [str(folder / name)]},
        "prompt": {"kind": "messages_column", "column": "messages"},
        "model": {"name": str(folder / "model")},
        "sampling_column": "sampling",
        "engine": engine,
        "destination": {"uri": str(out / name / token)},
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": token, "task_id": name},
            "run_token": token,
            "submission_id": f"raybatch-{token[:24]}-0",
        },
    }
    path = out / f"{name}-{token}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(spec))
    subprocess.run([sys.executable, "-m", "airflow_provider_raybatch.job", str(path)], check=True)
    manifest = json.loads((out / name / token / "manifest.json").read_text())
    wanted = _planned(folder / name)
    counts, timing = manifest["counts"], manifest["timing"]
    assert counts["ok"] == wanted["rows"], "rows are missing"
    assert manifest["tokens"]["output"] == wanted["output"], "another number of output tokens than planned"
    assert manifest["tokens"]["input"] == wanted["input"], "another number of prompt tokens than planned"
    result = {
        "system": label,
        "workload": name,
        "rows": counts["ok"],
        "output_tokens": manifest["tokens"]["output"],
        "seconds": timing["generation_seconds"],
        "startup_seconds": timing["startup_seconds"],
        "preflight_seconds": timing["preflight_seconds"],
        "commit_seconds": timing["commit_seconds"],
        "stages": manifest["stages"],
        "plan": {key: value.get("value", value) for key, value in manifest["plan"].items()},
        "gpu_utilization": [replica["gpu_utilization"] for replica in manifest["replicas"]],
    }
    print("RESULT", json.dumps(result), flush=True)


def _planned(folder: Path) -> dict[str, int]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(folder, columns=["prompt_tokens", "max_tokens"])
    total = {"input": pc.sum(table["prompt_tokens"]).as_py(), "output": pc.sum(table["max_tokens"]).as_py()}
    return {"rows": table.num_rows, **total}


if __name__ == "__main__":
    main()
