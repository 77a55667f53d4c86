# SPDX-License-Identifier: Apache-2.0
"""W3 (`workloads.py`) on two GPUs: groups of four prompts with a common prefix, in random order.

The first GPU runs the job with one replica, and then Ray Data LLM, tuned by its guide. Meanwhile the second
one runs ``LLM.generate`` with the rows sorted by prompt, and in their stored order. Prints a JSON line per
run as it ends, and `ratios` at the end.

usage: common_prefixes.py DATA_FOLDER OUT_FOLDER [ENGINE_ARGS_JSON]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from two_gpus import HERE, environment, measured

NAME = "W3"


def main() -> None:
    data, out, *rest = sys.argv[1:]
    engine = rest[0] if rest else '{"load_format": "dummy", "max_model_len": 4096}'
    Path(out).mkdir(parents=True, exist_ok=True)
    ceiling = start("llm_generate.py", "1", "--by-prefix", data, NAME, engine)
    found = {"job": measured(data, out, NAME, 1, engine, "0")}
    rival = start("ray_data_llm.py", "0", data, NAME, engine)
    for process in (rival, ceiling):
        for line in process.communicate()[0].splitlines():
            if line.startswith("RESULT "):
                print(line, flush=True)
                result = json.loads(line.removeprefix("RESULT "))
                found[result["system"]] = result["seconds"]
    rivals = [system for system in found if system != "job"]
    ratios = {f"{system} to job": round(found[system] / found["job"], 3) for system in rivals}
    print("RESULT", json.dumps({"seconds": found, "ratios": ratios}), flush=True)


def start(script: str, gpu: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / script), *arguments]
    return subprocess.Popen(command, env=environment(gpu), stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
