# SPDX-License-Identifier: Apache-2.0
"""Whether a replica over two Ray nodes answers as one GPU does, and survives the death of a worker.

Starts two Ray nodes on this machine, which has two GPUs: two raylets of one GPU each. Then, on 200 greedy
rows with the demo model:

1. one GPU,
2. tensor parallel 2, over both nodes, since none has two GPUs,
3. pipeline parallel 2, over both nodes,
4. tensor parallel 2 with long answers; one of vLLM's two worker processes is killed when the first part is
   written.

Prints a JSON document, and writes it to ``OUT_FOLDER/two_nodes.json``: how many texts of 2 and 3 are those of
1, on how many nodes the GPUs were, and how 4 ended. With ``--echo`` the same with the echo engine and GPUs
that are only numbers, to try this script; its workers are processes without a model.

Texts are compared with those of 1 in the same run; ``--only`` runs some of the four, by name.

With ``--one-gpu`` both nodes have the same GPU, for a machine that has only one: each counts it as its own,
and NCCL takes them for two hosts, so that it accepts two ranks on one GPU and connects them by TCP. Seconds
say nothing then; all else is as with two.

usage: two_nodes.py OUT_FOLDER [--rows 200] [--model FOLDER] [--engine-args JSON] [--only NAME]...
    [--echo | --one-gpu]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = ROOT / "dags_examples/data/questions.jsonl"
MODEL = ROOT / "dags_examples/demo_model/model"
ONE = {"tensor_parallel_size": 1}
SIZES = {
    "one GPU": ONE,
    "tensor parallel 2": {"tensor_parallel_size": 2},
    "pipeline parallel 2": {"pipeline_parallel_size": 2},
}
KILLED = "tensor parallel 2, a worker killed"
_WORKER = re.compile(r"^ray::.*(RayWorkerProc|RayWorkerWrapper|vllm_Worker)")
"""What Ray calls the processes of vLLM's Ray executors."""
_SLOTS = 16
_LONG = 400
"""Tokens of each answer of the run with a kill: some 30 seconds in all."""


def main() -> None:
    options = arguments()
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    os.environ["HF_HUB_OFFLINE"] = "1"
    start_nodes([] if options.echo else visible_gpus(options.one_gpu))
    rows = questions(out, options.rows)
    runs: dict[str, dict[str, Any]] = {}
    texts: dict[str, dict[Any, str]] = {}
    for name in options.only or [*SIZES, KILLED]:
        runs[name], texts[name] = run(Job(options, out, name))
    wanted = texts.get("one GPU", {})
    equal_rows = {
        name: sum(found.get(row) == text for row, text in wanted.items())
        for name, found in texts.items()
        if name != KILLED
    }
    result = {
        "system": "echo" if options.echo else "vllm",
        "rows": rows,
        "versions": versions(options.echo),
        "runs": runs,
        "equal_rows": equal_rows,
        "ratios": {
            f"{name} to one GPU": round(
                runs["one GPU"]["seconds"] / runs[name]["seconds"] if runs[name]["seconds"] else 0.0, 3
            )
            for name in list(SIZES)[1:]
            if {name, "one GPU"} <= runs.keys()
        },
    }
    (out / "two_nodes.json").write_text(json.dumps(result, indent=1) + "\n")
    print("RESULT", json.dumps(result), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A replica over two Ray nodes of this machine.")
    parser.add_argument("out", metavar="OUT_FOLDER")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--engine-args", type=json.loads, default={})
    parser.add_argument("--only", action="append", choices=[*SIZES, KILLED], metavar="NAME")
    parser.add_argument("--echo", action="store_true", help="without vLLM and GPUs")
    parser.add_argument("--one-gpu", action="store_true", help="both nodes have the same GPU")
    return parser.parse_args()


def visible_gpus(is_one: bool) -> list[str]:
    """The GPU of each node."""
    gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0,1").split(",")
    return gpus[:1] * 2 if is_one else gpus[:2]


def start_nodes(gpus: list[str]) -> None:
    """Two raylets with ports of their own. Each sees one GPU; they end with this process.

    :param gpus: of each node; none where GPUs are only numbers.
    """
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for number in range(2):
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number]
        if len(set(gpus)) == 1:
            os.environ |= {
                # NCCL refuses two ranks of one host on one GPU ("Duplicate GPU detected").
                "NCCL_HOSTID": f"node-{number}",
                # Between two hosts it would use neither.
                "NCCL_P2P_DISABLE": "1",
                "NCCL_SHM_DISABLE": "1",
                # Torch refuses symmetric memory of two ranks on one GPU.
                "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
            }
        cluster.add_node(
            num_cpus=8 if gpus else 1,
            num_gpus=1,
            object_store_memory=10**9 if gpus else 10**8,
            include_dashboard=False,
        )
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the driver uses none
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    assert [node.get("GPU") for node in nodes] == [1.0, 1.0], nodes


def questions(out: Path, rows: int) -> int:
    """The input: sums, each with its number."""
    lines = QUESTIONS.read_text().splitlines()
    asked = [json.loads(lines[number % len(lines)])["question"] for number in range(rows)]
    texts = (json.dumps({"id": number, "text": text}) for number, text in enumerate(asked))
    (out / "in.jsonl").write_text("".join(f"{text}\n" for text in texts))
    return rows


class Job:
    """One of the runs.

    :ivar is_long: whether answers are long, and a worker is killed in the middle.
    """

    def __init__(self, options: argparse.Namespace, out: Path, name: str) -> None:
        self.name, self.is_echo = name, options.echo
        self.is_long = is_long = name == KILLED
        sizes = SIZES["tensor parallel 2" if is_long else name]
        self.place = out / f"{name.replace(' ', '-').replace(',', '')}-{int(time.time())}"
        self.log = self.place / "log"
        engine_args: dict[str, Any] = {**sizes, **options.engine_args}
        if not self.is_echo:
            # vLLM takes processes that share /dev/shm for those of one node, and then looks for the second
            # process's GPU among those of the first.
            engine_args.setdefault("disable_custom_all_reduce", True)
        if options.one_gpu:
            # Else each worker takes nine tenths of the GPU, or fails.
            engine_args |= {"gpu_memory_utilization": 0.4, "kv_cache_memory_bytes": 4 * 10**9}
        sampling: dict[str, Any] = {"temperature": 0, "max_tokens": 64}
        if self.is_echo:
            pace = 0.15 if is_long else 0.01
            engine_args |= {"request_log": str(self.log), "seconds_per_token": pace, "max_num_seqs": _SLOTS}
        elif is_long:
            sampling = {"temperature": 0, "max_tokens": _LONG, "ignore_eos": True}
        self.document = {
            "source": [str(out / "in.jsonl")],
            "prompt": "{row.text}",
            "id_column": "id",
            "model": "echo" if self.is_echo else options.model,
            "engine": "echo" if self.is_echo else "vllm",
            "engine_args": engine_args,
            "sampling": sampling,
            "replicas": 1,
            "rows_in_flight": _SLOTS if is_long else None,
            "flush_interval": 1 if is_long else 10,
            "deduplicate": False,
            "destination": str(self.place),
            "submission": {
                "task": {"dag_id": "benchmark", "run_id": self.place.name, "task_id": "two_nodes"},
                "run_token": "token",
                "submission_id": f"raybatch-{self.place.name}-0",
            },
        }

    def workers(self) -> list[int]:
        """The process numbers of its engine's workers."""
        if self.is_echo:
            events = [json.loads(line) for file in self.log.glob("*.jsonl") for line in file.open()]
            opened = [event for event in events if event["event"] == "open"]
            return [one["pid"] for one in opened[-1]["workers"]]
        import psutil

        titles = {one.pid: " ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])}
        found = [pid for pid, title in titles.items() if _WORKER.match(title)]
        if not found:
            raise SystemExit(f"no worker among {[title for title in titles.values() if 'ray::' in title]}")
        return found

    def parts(self) -> int:
        """How many are written."""
        return len(list((self.place / "_raybatch/parts").rglob("*.parquet")))


def run(job: Job) -> tuple[dict[str, Any], dict[Any, str]]:
    """Do the job; what it was and left, and its texts by row."""
    import pyarrow.parquet as pq
    import ray

    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.driver import run as run_job

    spec = parse(BatchInferenceSpec, json.dumps(job.document))
    assert spec.submission is not None
    watch = Watch(job)
    began = time.time()
    summary = run_job(spec, spec.submission, lambda event: print(event.text(), flush=True))
    ended = time.time()
    watch.end()
    manifest = json.loads(Path(summary.manifest_uri).read_text())
    table = pq.read_table(manifest["uri"])
    wait_for("free GPUs", lambda: ray.available_resources().get("GPU") == 2)
    result = {
        "ok": manifest["counts"]["ok"],
        "seconds": manifest["timing"]["generation_seconds"],
        "job_seconds": round(ended - began, 1),
        "plan": {name: manifest["plan"][name] for name in ("replicas", "gpus_per_replica")},
        "nodes_of_gpus": watch.nodes,
        "placement_groups_left": watch.living(),
        "startup_seconds": [one["startup_seconds"] for one in manifest["replicas"]],
        "rows": [one["rows"] for one in manifest["replicas"]],
    }
    texts = dict(zip(table["id"].to_pylist(), table["response"].to_pylist(), strict=True))
    if job.is_long:
        result["killed"] = {
            "after_parts": watch.parts_at_kill,
            "seconds_to_the_end": round(ended - watch.killed_at, 1) if watch.killed_at else None,
            "processes": len(manifest["replicas"]),
        }
    print(job.name, result, flush=True)
    return result, texts


class Watch:
    """Looks where the job's GPUs are, and kills a worker where it is to.

    :ivar nodes: on how many its placement group was, 1 where it had none.
    """

    def __init__(self, job: Job) -> None:
        self.nodes, self.killed_at, self.parts_at_kill = 1, 0.0, 0
        self._job = job
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def living(self) -> int:
        """Placement groups that are there."""
        return len(self._groups()) - self._count()["REMOVED"]

    def _groups(self) -> list[dict[str, Any]]:
        import ray

        return list(ray.util.placement_group_table().values())

    def _count(self) -> Counter[str]:
        return Counter(group["state"] for group in self._groups())

    def _run(self) -> None:
        while not self._over.wait(0.2):
            for group in self._groups():
                if group["state"] == "CREATED":
                    self.nodes = max(self.nodes, len(set(group["bundles_to_node_id"].values())))
            if self._job.is_long and not self.killed_at and (parts := self._job.parts()):
                os.kill(self._job.workers()[-1], signal.SIGKILL)
                self.killed_at, self.parts_at_kill = time.time(), parts


def wait_for(what: str, holds: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise SystemExit(f"no {what} after {seconds:g} s")
        time.sleep(0.2)


def versions(echo: bool) -> dict[str, str]:
    import ray

    found = {"python": sys.version.split()[0], "ray": ray.__version__}
    if not echo:
        import torch
        import vllm

        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()
        found |= {"vllm": vllm.__version__, "torch": torch.__version__, "gpus": "; ".join(gpus)}
    return found


if __name__ == "__main__":
    main()
