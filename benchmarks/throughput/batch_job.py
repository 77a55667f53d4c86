# SPDX-License-Identifier: Apache-2.0
"""The job of `job.py` over whole workloads, to compare with `llm_generate.py`.

`seconds` is the manifest's generation time: from the first request in an engine to the last part on disk. So
it includes reading, tokenising, detokenising and writing besides the engine. Prints one JSON line per
workload.

`label` among the engine arguments names the system in the output.

usage: batch_job.py DATA_FOLDER OUT_FOLDER WORKLOAD [WORKLOAD ...] [ENGINE_ARGS_JSON]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from job import Task, planned


def main() -> None:
    folder, out, *names = sys.argv[1:]
    engine = json.loads(names.pop()) if names[-1].startswith("{") else {}
    label = engine.pop("label", "raybatch job")
    for name in names:
        source = Path(folder) / name
        task = Task(source, Path(folder) / "model", Path(out) / name, {"engine_args": engine})
        print("RESULT", json.dumps({"system": label, "workload": name, **measured(task, source)}), flush=True)


def measured(task: Task, source: Path) -> dict[str, Any]:
    manifest, wanted = task.run(), planned(source)
    counts, timing = manifest["counts"], manifest["timing"]
    assert counts["ok"] == wanted["rows"], "rows are missing"
    assert manifest["tokens"]["output"] == wanted["output"], "another number of output tokens than planned"
    assert manifest["tokens"]["input"] == wanted["input"], "another number of prompt tokens than planned"
    return {
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


if __name__ == "__main__":
    main()
