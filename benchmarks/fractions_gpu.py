# SPDX-License-Identifier: Apache-2.0
"""Two small models on one GPU: one after the other on all of it, and beside each other on half of it each.

A job that generates and a job that embeds, each with an engine of its own that starts and ends with it, on a
Ray of this machine. `whole` runs one after the other, `halves` (``num_gpus=0.5``) both at once; the second
pair has ways and jobs in the other order. Models have about 57 million random weights, unless folders are
given. Prints a table: seconds from the first job's begin to the last one's end, the seconds of each job's
engine from its first request to its last answer, and the most memory in use on the GPU.

    python benchmarks/fractions_gpu.py
    python benchmarks/fractions_gpu.py --generate /models/judge --embed /models/embedding --rows 20000
    python benchmarks/fractions_gpu.py --engine echo --rows 200
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "dags_examples/demo_model/model"
SIZES = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
KINDS = ("generate", "embed")
MIB = 2**20


class Took(NamedTuple):
    """Seconds of both jobs together and of their engines by kind, and the most MiB on the GPU."""

    whole: float
    engines: dict[str, float]
    memory: int | None


class Memory(threading.Thread):
    """The most memory in use on the first GPU, as NVML says; ``None`` without one.

    :ivar most: MiB.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: int | None = None
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        """Look four times a second."""
        try:
            import pynvml

            pynvml.nvmlInit()
            device = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._over.wait(0.25):
                used = int(pynvml.nvmlDeviceGetMemoryInfo(device).used) // MIB
                self.most = max(self.most or 0, used)
        except Exception:  # of a machine without one
            return

    def end(self) -> int | None:
        """End it, and return the MiB."""
        self._over.set()
        self.join()
        return self.most


class Jobs:
    """Jobs on the rows of a folder."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._options = folder, options
        self._count = 0
        self._rows = folder / "in.jsonl"
        texts = (f"{number} " + "word " * (20 + number % 40) for number in range(options.rows))
        self._rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self._models = {kind: self._model(kind) for kind in KINDS}

    def whole(self, kinds: tuple[str, ...]) -> Took:
        """One after the other."""
        memory, began = Memory(), time.time()
        engines = {kind: self._run(kind, 1) for kind in kinds}
        return Took(time.time() - began, engines, memory.end())

    def halves(self, kinds: tuple[str, ...]) -> Took:
        """Both at once."""
        engines: dict[str, float] = {}

        def run(kind: str) -> None:
            engines[kind] = self._run(kind, 0.5)

        memory, began = Memory(), time.time()
        jobs = [threading.Thread(target=run, args=(kind,)) for kind in kinds]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert len(engines) == len(kinds), "a job has failed"
        return Took(time.time() - began, engines, memory.end())

    def _run(self, kind: str, num_gpus: float) -> float:
        from airflow_provider_raybatch.contract.base import parse
        from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
        from airflow_provider_raybatch.job.driver import run as run_job

        self._count += 1
        name = f"{kind}-{self._count}"
        document = {
            "source": [str(self._rows)],
            "prompt": "{row.text}",
            "model_task": kind,
            **self._models[kind],
            "num_gpus": num_gpus,
            "num_cpus": 0.5,
            "replicas": 1,
            "deduplicate": False,
            "destination": str(self._folder / name),
            "submission": {
                "task": {"dag_id": "benchmark", "run_id": name, "task_id": "fractions"},
                "run_token": "token",
                "submission_id": f"raybatch-{name}",
            },
        }
        spec = parse(BatchInferenceSpec, json.dumps(document))
        assert spec.submission is not None
        summary = run_job(spec, spec.submission, lambda event: print(f"{name}: {event.text()}", flush=True))
        manifest = json.loads(Path(summary.manifest_uri).read_text())
        assert manifest["counts"]["error"] == 0
        (replica,) = manifest["replicas"]
        return float(replica["ended_seconds"])

    def _model(self, kind: str) -> dict[str, Any]:
        """The arguments about model and engine."""
        options = self._options
        fixed: dict[str, Any] = {"temperature": 0, "max_tokens": options.tokens}
        if options.engine == "echo":
            args: dict[str, Any] = {"seconds_per_token": 0.01, "max_num_seqs": 32, "startup_seconds": 2.0}
            sampling = {"sampling": fixed} if kind == "generate" else {}
            return {"engine": "echo", "model": "echo", "engine_args": args, **sampling}
        given = getattr(options, kind)
        folder = str(given or made(self._folder / f"{kind}-model", kind))
        # Compiling takes longer than all rows of such a model.
        args = {"enforce_eager": True, "max_model_len": 1024, **({} if given else {"load_format": "dummy"})}
        args |= {"runner": "pooling"} if kind == "embed" else {}
        sampling = {"sampling": {**fixed, "ignore_eos": True}} if kind == "generate" else {}
        return {"engine": "vllm", "model": folder, "engine_args": {**args, **options.engine_args}, **sampling}


def made(folder: Path, kind: str) -> Path:
    """A model without weights, with the tokenizer of the examples' model."""
    shutil.copytree(TOKENIZER, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    plain = {name: value for name, value in config.items() if "token_id" in name or name == "vocab_size"}
    architecture = "LlamaForCausalLM" if kind == "generate" else "LlamaModel"
    plain |= {"model_type": "llama", "architectures": [architecture], "dtype": "bfloat16", **SIZES}
    (folder / "config.json").write_text(json.dumps(plain))
    return folder


def main() -> None:
    options = arguments()
    import ray

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    ray.init(
        address="local",
        num_cpus=4,
        num_gpus=1,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    found: dict[str, list[tuple[tuple[str, ...], Took]]] = {"whole": [], "halves": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        jobs = Jobs(Path(folder), options)
        for pair in range(options.pairs):
            order = KINDS if pair % 2 == 0 else KINDS[::-1]
            for way in ("whole", "halves") if pair % 2 == 0 else ("halves", "whole"):
                took = (jobs.whole if way == "whole" else jobs.halves)(order)
                found[way].append((order, took))
                print(way, order, took, flush=True)
    print_table(found, options)


def print_table(found: dict[str, list[tuple[tuple[str, ...], Took]]], options: argparse.Namespace) -> None:
    print(f"\n{options.rows:,} rows for each job, engine {options.engine}\n")
    print("| GPU | order | both jobs | generating | embedding | most memory |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for way, runs in found.items():
        for order, took in runs:
            memory = "unknown" if took.memory is None else f"{took.memory:,} MiB"
            engines = " | ".join(f"{took.engines[kind]:.1f} s" for kind in KINDS)
            print(f"| {way} | {', '.join(order)} | {took.whole:.1f} s | {engines} | {memory} |")
    whole, halves = (statistics.median(took.whole for _, took in runs) for runs in found.values())
    print(f"\nwhole to halves: {whole / halves:.2f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", choices=("vllm", "echo"), default="vllm")
    parser.add_argument("--generate", type=Path, help="folder of the model that generates")
    parser.add_argument("--embed", type=Path, help="folder of the model that embeds")
    parser.add_argument("--engine-args", type=json.loads, default={}, help="of both engines, as JSON")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--tokens", type=int, default=64, help="that are generated for a row")
    parser.add_argument(
        "--pairs", type=int, default=2, help="each of both ways; the second in the other order"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
