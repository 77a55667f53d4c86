# SPDX-License-Identifier: Apache-2.0
"""Other kinds of tasks on one GPU: vectors beside ``LLM.embed``, the cost of log probabilities and adapters.

`embed`: one ``LLM.embed`` of all texts and one job over them, in turns; both engines are made once and share
the GPU. The texts are the users' messages of W1 (`workloads.py`), the model has the shape of Qwen3 Embedding
0.6B and random weights. `generate`: jobs over W1 with and without `logprobs` on one warm engine, and with a
LoRA adapter of rank 16 for all rows on the next. `context`: a job with the model's own context of 131,072
tokens on a part of the GPU that does not hold it. Prints a JSON line a run, and `ratios` at the end: medians
over the pairs of the first one's seconds by the second one's.

usage: kinds_of_tasks.py DATA OUT embed|generate|context [PAIRS [ENGINE_ARGS_JSON]]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from start_up import some
from two_gpus import HERE, environment, result, start_ray
from workloads import variant_of

KEPT = 600
"""Seconds for which engines wait for the next job."""
SHARE = 0.42
"""Of the GPU's memory, for each of two engines."""
WORKLOAD, TEXTS = "W1", "texts"
SMALL = {
    "architectures": ["LlamaModel"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
RANK, MODULES = 16, ("q_proj", "k_proj", "v_proj", "o_proj")
FIXED = {"sampling": {"temperature": 0, "max_tokens": 8, "ignore_eos": True}}
CONTEXT_SHARE = 0.2
Pairs = dict[str, list[tuple[float, float]]]


def main() -> None:
    if sys.argv[1] == "--llm":
        serve(Path(sys.argv[2]), json.loads(sys.argv[3]))
        return
    data, out, kind, *rest = sys.argv[1:]
    pairs = int(rest[0]) if rest else 3
    engine = {"load_format": "dummy", **(json.loads(rest[1]) if len(rest) > 1 else {})}
    Path(out).mkdir(parents=True, exist_ok=True)
    start_ray(gpus=1)
    found = {"embed": embed, "generate": generate, "context": context}[kind](
        Path(data), Path(out), pairs, engine
    )
    each = {name: [round(first / second, 3) for first, second in some] for name, some in found.items()}
    ratios = {name: statistics.median(values) for name, values in each.items()}
    print("RESULT", json.dumps({"pairs": found, "each": each, "ratios": ratios}), flush=True)


def embed(data: Path, out: Path, pairs: int, engine: dict[str, Any]) -> Pairs:
    model = small_model(data)
    args = {"gpu_memory_utilization": SHARE, "runner": "pooling", **engine}
    names = [texts_of(data, number) for number in range(pairs + 1)]
    fields = {
        "model_task": "embed",
        "model": str(model),
        "messages_column": None,
        "prompt_column": "text",
        "engine_args": args,
        "keep_warm": KEPT,
    }
    command = [sys.executable, str(HERE / "kinds_of_tasks.py"), "--llm", str(model), json.dumps(args)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment("0"), stdin=pipe, stdout=pipe, text=True) as llm:
        assert llm.stdin is not None
        assert llm.stdout is not None
        until("READY", llm.stdout)
        few = some(data / names[0], out / "rows")
        result(few.parent, out, few.name, 1, fields)
        seconds = []
        for name in names[1:]:
            print(data / name, file=llm.stdin, flush=True)
            ceiling = json.loads(until("RESULT ", llm.stdout).removeprefix("RESULT "))
            job = shown({"way": "job", **result(data, out, name, 1, fields)})
            assert ceiling["input_tokens"] == job["input_tokens"], "other tokens than LLM.embed"
            seconds.append((ceiling["seconds"], job["seconds"]))
        llm.stdin.close()
        llm.stdout.read()
    return {"LLM.embed to job": seconds}


def serve(model: Path, args: dict[str, Any]) -> None:
    """Embed the texts of each file whose name comes in, in one call."""
    from vllm import LLM

    llm = LLM(str(model), **args)
    llm.embed(["warm up " * 12] * 64, use_tqdm=False)
    print("READY", flush=True)
    for line in sys.stdin:
        texts = pq.read_table(line.strip())["text"].to_pylist()
        began = time.time()
        outputs = llm.embed(texts, use_tqdm=False)
        seconds = round(time.time() - began, 2)
        tokens = sum(len(one.prompt_token_ids) for one in outputs)
        shown({"way": "LLM.embed", "rows": len(texts), "input_tokens": tokens, "seconds": seconds})


def generate(data: Path, out: Path, pairs: int, engine: dict[str, Any]) -> Pairs:
    args = {"gpu_memory_utilization": SHARE, "max_model_len": 2048, **engine}
    adapter = save_adapter(data / "model", data / "adapter")
    plain = {"model": str(data / "model"), "engine_args": args, "keep_warm": KEPT, **FIXED}
    ways = {
        "none": plain,
        "logprobs": {**plain, "sampling": {**FIXED["sampling"], "logprobs": 5}},
        "adapter": {**plain, "adapter": str(adapter)},
    }
    few = some(data / WORKLOAD, out / "rows")
    numbers = iter(range(1, pairs * len(ways) + 1))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for together in (("none", "logprobs"), ("adapter",)):  # a GPU holds one warm engine at a time
        result(few.parent, out, few.name, 1, ways[together[0]])
        for way in together * pairs:
            name = variant_of(WORKLOAD, next(numbers))
            job = shown({"way": way, **result(data, out, name, 1, ways[way])})
            seconds[way].append(job["seconds"])
    return {
        "none to logprobs 5": [*zip(seconds["none"], seconds["logprobs"], strict=True)],
        "none to adapter": [*zip(seconds["none"], seconds["adapter"], strict=True)],
    }


def context(data: Path, out: Path, pairs: int, engine: dict[str, Any]) -> Pairs:
    """One job, which fails if vLLM does not start with the derived length; and its sizes."""
    args = {"gpu_memory_utilization": CONTEXT_SHARE, **engine}
    fields = {"model": str(data / "model"), "engine_args": args, **FIXED}
    few = some(data / WORKLOAD, out / "rows")
    found = result(few.parent, out, few.name, 1, fields)
    manifest = max(out.glob("*/manifest.json"), key=lambda file: file.stat().st_mtime)
    shown({"way": "context", "plan": json.loads(manifest.read_text())["plan"], "seconds": found["seconds"]})
    return {}


def small_model(data: Path) -> Path:
    folder = data / "small"
    folder.mkdir(exist_ok=True)
    for file in (data / "model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((data / "model/config.json").read_text())
    sizes = SMALL if config["hidden_size"] > SMALL["hidden_size"] else {"architectures": ["LlamaModel"]}
    (folder / "config.json").write_text(json.dumps({**config, **sizes}))
    return folder


def texts_of(data: Path, number: int) -> str:
    """Write the users' messages of a workload as one file; return its name."""
    table = pq.read_table(data / variant_of(WORKLOAD, number), columns=["messages"])
    texts = [messages[-1]["content"] for messages in table["messages"].to_pylist()]
    name = variant_of(TEXTS, number)
    (data / name).mkdir(exist_ok=True)
    pq.write_table(pa.table({"text": texts}), data / name / "part-0.parquet")
    return name


def save_adapter(model: Path, folder: Path) -> Path:
    """Write a LoRA adapter with small random weights for all layers."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, head = config["hidden_size"], config["head_dim"]
    keys = config["num_key_value_heads"] * head
    sizes = {"q_proj": (hidden, config["num_attention_heads"] * head), "o_proj": (hidden, hidden)}
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module in MODULES:
            into, out = sizes.get(module, (hidden, keys))
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for side, shape in (("A", (RANK, into)), ("B", (out, RANK))):
                weights = torch.randn(shape) * 0.01
                tensors[f"{name}.lora_{side}.weight"] = weights.to(torch.bfloat16)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    adapter = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": [*MODULES],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    return folder


def shown(found: dict[str, Any]) -> dict[str, Any]:
    print("RESULT", json.dumps(found), flush=True)
    return found


def until(begins: str, lines: Iterator[str]) -> str:
    for line in lines:
        if line.startswith(begins):
            if begins != "READY":
                print(line.strip(), flush=True)
            return line.strip()
    raise SystemExit("LLM.embed failed; see above")


if __name__ == "__main__":
    main()
