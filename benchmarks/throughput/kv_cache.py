# SPDX-License-Identifier: Apache-2.0
"""What vLLM makes of a GPU's memory, for models of known shapes, beside what the plan expects.

Each engine starts in a process of its own with random weights, two at a time on two GPUs. Its log says what
the weights take, what is left for the KV cache, and how many tokens that holds. `measure` prints a JSON line
an engine, and `table` reads such lines and prints them beside the plan's estimate.

usage: kv_cache.py measure TOKENIZER_FOLDER OUT_FOLDER SECONDS
       kv_cache.py table RESULTS ACCELERATOR_TYPE
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from airflow_provider_raybatch.job.planning.engine_memory import GIB, gpu_named, memory_of, sizes_of
from airflow_provider_raybatch.job.planning.model_shape import shape_of

GPUS = ("0", "1")
LONGEST_START = 170.0
FEWEST_SECONDS = 45.0
DEFAULTS = {"gpu_memory_utilization": 0.9}


def llama(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int = 8, **further: object
) -> dict[str, Any]:
    """A config of the architecture of Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "bfloat16",
        "rope_theta": 500_000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
        **further,
    }


QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "max_position_embeddings": 32_768,
}
SHAPES: dict[str, dict[str, Any]] = {
    "270M": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "vocab_size": 262_144,
        "max_position_embeddings": 32_768,
        "sliding_window": 512,
        "layer_types": ([*["sliding_attention"] * 5, "full_attention"]) * 3,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "dtype": "bfloat16",
        "rope_theta": 1e6,
        "rope_local_base_freq": 10_000.0,
    },
    "0.5B": llama(896, 4864, 24, 14, 2, **QWEN2, vocab_size=151_936, tie_word_embeddings=True),
    "1B": llama(2048, 8192, 16, 32, tie_word_embeddings=True),
    "3B": llama(3072, 8192, 28, 24, tie_word_embeddings=True),
    "8B": llama(4096, 14_336, 32, 32),
    "32B": llama(5120, 27_648, 64, 40, **QWEN2, vocab_size=152_064),
    "70B": llama(8192, 28_672, 80, 64),
}
"""Sizes of Gemma 3 270M, Qwen2.5 0.5B and 32B, and Llama 3 1B, 3B, 8B and 70B."""


@dataclass(frozen=True)
class Engine:
    """An engine to start."""

    shape: str
    arguments: dict[str, Any]

    @property
    def gpus(self) -> int:
        """How many it takes."""
        return int(self.arguments.get("tensor_parallel_size", 1))


ENGINES = (
    Engine("8B", {"max_model_len": 2048}),
    Engine("8B", {"max_model_len": 131_072}),
    Engine("32B", {"max_model_len": 4096}),
    Engine("1B", {"max_model_len": 8192}),
    Engine("8B", {"max_model_len": 8192, "quantization": "fp8"}),
    Engine("0.5B", {"max_model_len": 32_768}),
    Engine("270M", {"max_model_len": 8192}),
    Engine("3B", {"max_model_len": 8192, "gpu_memory_utilization": 0.4}),
    Engine("8B", {"max_model_len": 8192, "kv_cache_dtype": "fp8"}),
    Engine("8B", {"max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 8192}),
    Engine("8B", {"max_model_len": 8192, "tensor_parallel_size": 2}),
    Engine("32B", {"max_model_len": 8192, "tensor_parallel_size": 2}),
)
"""The most wanted first, in case the time is short."""
PROGRAM = """
import json, sys
from vllm import LLM
LLM(**json.loads(sys.argv[1]))
"""
FIGURES = {
    "weights_gib": r"Model loading took ([\d.]+) GiB",
    "kv_gib": r"Available KV cache memory: ([\d.]+) GiB",
    "kv_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "graphs_gib": r"[Gg]raph capturing finished in .* took ([\d.]+) GiB",
}


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "measure":
        tokenizer, out, seconds = arguments
        measure(Path(tokenizer), Path(out), time.monotonic() + float(seconds))
    else:
        results, accelerator_type = arguments
        print("\n".join(table(Path(results).read_text(encoding="utf-8"), accelerator_type)))


def measure(tokenizer: Path, out: Path, end: float) -> None:
    """Start the engines, those of one GPU first."""
    free: Queue[str] = Queue()
    for gpu in GPUS:
        free.put(gpu)

    def measured(number: int, engine: Engine) -> None:
        taken = [free.get() for _ in range(engine.gpus)]
        try:
            found = started(engine, number, taken, tokenizer, out, end)
            print(json.dumps({"model": engine.shape, "engine_args": engine.arguments, **found}), flush=True)
        finally:
            for gpu in taken:
                free.put(gpu)

    for gpus in (1, 2):
        with ThreadPoolExecutor(len(GPUS) // gpus) as threads:
            numbered = [pair for pair in enumerate(ENGINES) if pair[1].gpus == gpus]
            list(threads.map(lambda pair: measured(*pair), numbered))


def started(
    engine: Engine, number: int, gpus: list[str], tokenizer: Path, out: Path, end: float
) -> dict[str, Any]:
    """What the log of one engine says."""
    left = end - time.monotonic()
    if left < FEWEST_SECONDS:
        return {"error": "no time"}
    folder, log = out / engine.shape, out / f"{number}.log"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[engine.shape]))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tokenizer / name).read_bytes())
    arguments = {"model": str(folder), "load_format": "dummy", **DEFAULTS, **engine.arguments}
    command = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    with log.open("w") as file:
        try:
            subprocess.run(
                command,
                stdout=file,
                stderr=file,
                env=environment,
                timeout=min(left, LONGEST_START),
                check=True,
            )
        except subprocess.SubprocessError as error:
            failure = {"error": type(error).__name__}
        else:
            failure = {}
    text = log.read_text(errors="replace")
    found = {name: re.findall(pattern, text) for name, pattern in FIGURES.items()}
    figures = {name: float(values[-1].replace(",", "")) for name, values in found.items() if values}
    return {**figures, **failure}


def table(lines: str, accelerator_type: str) -> Iterator[str]:
    """Rows of a table in Markdown: what vLLM reported, and the plan's estimate."""
    gpu = gpu_named(accelerator_type)
    if gpu is None:
        raise SystemExit(f"{accelerator_type}: not in planning/engine_memory.py")
    yield "| model | engine arguments | weights, GiB | plan | KV cache, GiB | plan | tokens | plan | |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for line in lines.splitlines():
        one = json.loads(line[line.index("{") :])
        shape = shape_of(SHAPES[one["model"]])
        sizes = None if shape is None else sizes_of({**DEFAULTS, **one["engine_args"]}, shape, gpu)
        if "kv_tokens" not in one or shape is None or sizes is None:
            continue
        expected, measured = memory_of(shape, sizes, gpu.memory), int(one["kv_tokens"])
        arguments = ", ".join(f"`{name}={value}`" for name, value in one["engine_args"].items())
        yield (
            f"| {one['model']} | {arguments} | {one['weights_gib']:.2f} | {expected.weights / GIB:.2f} "
            f"| {one['kv_gib']:.2f} | {expected.cache / GIB:.2f} | {measured:,} | {expected.tokens:,} "
            f"| {100 * (expected.tokens / measured - 1):+.2f} % |"
        )


if __name__ == "__main__":
    main()
