# SPDX-License-Identifier: Apache-2.0
"""How long rows may be, by the arithmetic; and sizes of `plan` beside what a job and vLLM report.

`run` makes a plan and a job of three data sets on vLLM's CPU build, with a private Ray: the demo's questions,
long documents for a model with random weights, and rows for a real model in a folder. With an engine that is
given the model's own context, it also shows what vLLM did before. `write` makes
``benchmarks/results/context_length.md`` of the lines that `run` prints, and of the arithmetic.

usage: context_length.py run OUT_FOLDER REAL_MODEL_FOLDER > LINES
       context_length.py write LINES MACHINE
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from job import start_cluster
from kv_cache import SHAPES, llama

from airflow_provider_raybatch.job.planning.context_length import Asked, ContextLength, context_length
from airflow_provider_raybatch.job.planning.engine_memory import memory_of, sizes_of
from airflow_provider_raybatch.job.planning.gpus import GIB, gpu_named, known_gpus
from airflow_provider_raybatch.job.planning.model_fit import ModelSizes, fit_of
from airflow_provider_raybatch.job.planning.model_shape import shape_of

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks/results/context_length.md"
DEMO = ROOT / "dags_examples/demo_model/model"
GPUS, MODELS = ("L4", "A100-80G", "H100", "H200"), ("8B", "32B", "70B")
NEEDED = 4096
ON_CPU = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 16, "kv_cache_memory_bytes": 256 << 20}
SIZES = "`kv_cache_memory_bytes` 256 MiB, float32, `max_tokens` 8"
TEMPLATE = "{{ bos_token }}{% for one in messages %}{{ one['content'] }}\n{% endfor %}"
JOB = "airflow_provider_raybatch.job.entry.main"
PREVIEW = "airflow_provider_raybatch.job.preview.main"
EVENT = "event: "
DRIVER = f"""
import importlib, sys
from airflow_provider_raybatch.job.control.control import EventWriter
EventWriter.emit = lambda writer, event: print({EVENT!r} + event.model_dump_json(), flush=True)
sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
"""
"""A job's own driver signs its events for Airflow, and shows sentences alone without a key."""
NOTES = f"""\
Models in bfloat16 with the shapes of Llama 3 8B and 70B and Qwen2.5 32B, on the fewest GPUs that hold a row
of {NEEDED:,} tokens (tensor parallel in a node of eight; on L4s pipeline parallel); vLLM 0.29. *Before* is
what vLLM does with the model's own context; *now* is the `max_model_len` that the job sets, and *rows at
once* is how many rows of that length the KV cache holds.

- *The KV cache has the same tokens before and after*: a shorter context frees nothing. Where vLLM starts with
  the model's own context, nothing changes.
- *`auto`* is -1: vLLM takes what its cache holds. It stands where a GPU's name leaves open whether the own
  context fits: an L4 has 22.0 GiB or up to 24, an H100 79.1 GiB or up to 94.
"""


@dataclass(frozen=True)
class DataSet:
    """Rows for a model.

    :param own: whether the engine is given the model's own context, too, as it was before.
    """

    name: str
    source: Path
    model: Path
    fields: dict[str, Any]
    own: bool = True


def main() -> None:
    """Do what the arguments say."""
    verb, first, second = sys.argv[1:]
    if verb == "write":
        RESULT.write_text("".join(f"{line}\n" for line in page(Path(first), second)))
        return
    start_cluster(num_cpus=2, object_store_memory=200 << 20)
    for data in data_sets(Path(first), Path(second)):
        print(json.dumps(measured(data, Path(first) / data.name)), flush=True)


def data_sets(out: Path, real: Path) -> Iterator[DataSet]:
    """Three of them; `own` context is 1,024, 131,072 and what the real model has."""
    questions = ROOT / "dags_examples/data/questions.jsonl"
    yield DataSet("demo", questions, DEMO, {"prompt": "{row.question}"}, own=False)
    documents, rng = out / "documents.jsonl", random.Random(0)
    out.mkdir(parents=True, exist_ok=True)
    paragraphs = [paragraph.strip() for file in sorted((ROOT / "docs").glob("*.md"))
                  for paragraph in file.read_text().split("\n\n")]  # fmt: skip
    rows = [{"text": " ".join(rng.choices(paragraphs, k=rng.randint(5, 80)))} for _ in range(24)]
    documents.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    yield DataSet(
        "documents",
        documents,
        small_llama(out),
        {"prompt": "{row.text}", "engine_args": {"load_format": "dummy"}},
    )
    yield DataSet(
        "real", questions, real, {"prompt": "{row.question}", "chat_template": TEMPLATE, "limit": 40}
    )


def small_llama(out: Path) -> Path:
    """A model of Llama's architecture and its context, with the demo's tokenizer and random weights."""
    folder = out / "model"
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder)
    shutil.copy(DEMO / "model.safetensors", folder)  # it is looked for, and not loaded
    config = llama(256, 512, 8, 4, 4, vocab_size=1536, eos_token_id=2)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def measured(data: DataSet, out: Path) -> dict[str, Any]:
    """Plan and job of a data set."""
    engine_args = {**ON_CPU, **data.fields.get("engine_args", {})}
    spec = {
        "source": [str(data.source)],
        "model": str(data.model),
        "engine": "vllm",
        "sampling": {"temperature": 0, "max_tokens": 8},
        "destination": str(out / "new"),
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "one", "task_id": data.name},
            "run_token": "token",
            "submission_id": f"raybatch-{data.name}-0",
        },
        **data.fields,
        "engine_args": engine_args,
    }
    out.mkdir(parents=True, exist_ok=True)
    report = events(out, PREVIEW, spec, {"verb": "plan", "all_rows": True})[-1]["report"]
    finished = events(out, JOB, spec)
    manifest = json.loads((out / "new/manifest.json").read_text())
    engine, tokens = manifest["plan"]["engine"], report["prompt_tokens"]
    own = json.loads((data.model / "config.json").read_text())["max_position_embeddings"]
    before = "not tried" if own > 1024 else "starts"
    if data.own:
        whole = {
            **spec,
            "destination": str(out / "own"),
            "engine_args": {**engine_args, "max_model_len": own},
        }
        before = str(events(out, JOB, whole)[-1].get("message", "starts"))
    return {
        "data": data.name,
        "rows": manifest["counts"]["input"],
        "failed": manifest["counts"]["error"],
        "plan": {name: tokens[name] for name in ("total", "p50", "p95", "p99", "longest")},
        "input_tokens": manifest["tokens"]["input"],
        "own": own,
        "before": before,
        "max_model_len": manifest["plan"]["max_model_len"],
        "engine": engine,
        "expected": expected(data.model, engine_args, engine),
        "notices": [one["message"] for one in finished if one["event"] == "notice"],
    }


def events(
    out: Path, module: str, spec: dict[str, Any], request: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """What a job tells, as it ends.

    :param module: the one that runs the job.
    """
    files = [out / "spec.json", *([out / "request.json"] if request else [])]
    for file, content in zip(files, (spec, request), strict=False):
        file.write_text(json.dumps(content))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, module, *map(str, files)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    (out / f"log-{module}-{Path(spec['destination']).name}.txt").write_text(done.stdout)
    lines = (line for line in done.stdout.splitlines() if line.startswith(EVENT))
    return [json.loads(line.removeprefix(EVENT)) for line in lines]


def expected(model: Path, engine_args: dict[str, Any], engine: dict[str, Any]) -> int:
    """Tokens of the KV cache, whose bytes are given.

    :param engine: what it reports: on CPUs vLLM has other defaults, and does not overlap steps.
    """
    shape = shape_of(json.loads((model / "config.json").read_text()))
    assert shape is not None
    found = {name: engine[name] for name in ("max_model_len", "max_num_batched_tokens")}
    sizes = sizes_of({**engine_args, "load_format": "auto", "async_scheduling": False, **found}, shape, None)
    assert sizes is not None
    return memory_of(shape, sizes, 0).tokens


def page(lines: Path, machine: str) -> Iterator[str]:
    """The page of results."""
    yield from ("# How long rows may be", "", "## By the arithmetic", "")
    yield from arithmetic()
    yield from ("", *NOTES.splitlines(), "")
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    if found:
        yield from ("## Plan, job and vLLM", "")
        yield from beside(found)
        yield from (
            "",
            f"vLLM's CPU build on {machine}; `kv_cache_memory_bytes` 256 MiB, float32, `max_tokens` 8.",
            "",
        )
    yield "Made by `python benchmarks/throughput/context_length.py write LINES MACHINE`."


def arithmetic() -> Iterator[str]:
    """Room of models on GPUs, before and now."""
    yield "| model | own context | GPU | GPUs | weights | KV cache, tokens | before | now | rows at once |"
    yield "| --- | ---: | --- | ---: | ---: | ---: | --- | --- | ---: |"
    for model in MODELS:
        shape = shape_of(SHAPES[model])
        assert shape is not None
        sizes = ModelSizes(shape, counts_graphs=True)
        for name in GPUS:
            gpu = gpu_named(name)
            assert gpu is not None
            arguments = fit_of(sizes, {"max_model_len": NEEDED}, gpu, 8).parallel
            found = context_length(
                sizes, arguments, Asked(shape.context, NEEDED, False), known_gpus([name]), 8
            )
            fit = fit_of(sizes, {**arguments, "max_model_len": found.tokens}, gpu, 8)
            before = fit_of(sizes, {**arguments, "max_model_len": shape.context}, gpu, 8).fits
            assert fit.memory is not None
            gpus = " x ".join(map(str, arguments.values())) or "1"
            yield (
                f"| {model} | {shape.context:,} | {name} | {gpus} | {fit.memory.weights / GIB:.0f} GiB | "
                f"{fit.memory.tokens:,} | {'starts' if before else 'vLLM refuses'} | {in_words(found)} | "
                f"{fit.memory.sequences:.1f} |"
            )


def in_words(found: ContextLength) -> str:
    """The context that engines get."""
    if found.max_model_len is None:
        return "own"
    return f"{found.tokens:,}" if found.max_model_len > 0 else f"auto, about {found.tokens:,}"


def beside(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Sizes by plan beside those of the job."""
    yield (
        "| data | rows | tokens by plan | in the manifest | longest | own context | with it, vLLM | "
        "max_model_len | cache, plan | cache, vLLM | |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"
    for one in lines:
        engine, planned = one["engine"], one["expected"]
        share = planned / engine["kv_cache_tokens"] - 1
        before = "refuses" if "KV cache" in one["before"] else one["before"]
        yield (
            f"| {one['data']} | {one['rows']} | {one['plan']['total']:,} | {one['input_tokens']:,} | "
            f"{one['plan']['longest']:,} | {one['own']:,} | {before} | {engine['max_model_len']:,} | "
            f"{planned:,} | {engine['kv_cache_tokens']:,} | {share:+.2%} |"
        )


if __name__ == "__main__":
    main()
