# SPDX-License-Identifier: Apache-2.0
"""Memory, file size and CPU time of log probabilities, by the number of alternatives of each token.

python benchmarks/logprobs.py > benchmarks/results/logprobs.md
"""

from __future__ import annotations

import json
import math
import platform
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
from transformers import AutoTokenizer

from airflow_provider_raybatch.job.engine.logprobs import LogprobReader
from airflow_provider_raybatch.job.input.table import as_parquet
from airflow_provider_raybatch.job.tasks.optional_columns.logprobs import token_lists

ROOT = Path(__file__).parents[1]
TOKENS = 64
RESPONSES = 1000
ROUNDS = 5


def flat(ids: list[int], vocabulary: list[int], most: int, random: np.random.Generator) -> SimpleNamespace:
    """Return what vLLM gives for a text: the token and the `most` likeliest ones at each position."""
    width, size = most + 1, len(ids)
    likely = random.choice(vocabulary, (size, width))
    likely[:, 0] = ids
    logprobs = -np.sort(random.exponential(2.0, (size, width)))
    starts = list(range(0, size * width, width))
    return SimpleNamespace(
        start_indices=starts,
        end_indices=[start + width for start in starts],
        token_ids=likely.ravel().tolist(),
        logprobs=logprobs.ravel().tolist(),
        ranks=[1] * (size * width),
    )


def measured(most: int, words: list[int], tokenizer: object) -> tuple[float, float, float, float]:
    """Return bytes in memory, of Parquet and of JSON, and microseconds of CPU, of each token."""
    random = np.random.default_rng(0)
    starts = random.integers(0, len(words) - TOKENS, RESPONSES)
    given = [flat(words[start : start + TOKENS], words, most, random) for start in starts.tolist()]
    reader = LogprobReader(tokenizer)
    for one in given:  # fills its texts of tokens
        reader.read(one)
    seconds = math.inf
    for _ in range(ROUNDS):
        began = time.process_time()
        read = [reader.read(one) for one in given]
        lists = token_lists(read)
        seconds = min(seconds, time.process_time() - began)
    tokens = RESPONSES * TOKENS
    memory = sum(one.ids.nbytes + one.logprobs.nbytes + one.ranks.nbytes for one in read)
    parquet = len(as_parquet(pa.table({"logprobs": lists}), compression="zstd"))
    written = len(json.dumps(lists[:100].to_pylist())) * RESPONSES / 100
    return memory / tokens, parquet / tokens, written / tokens, seconds / tokens * 1e6


def main() -> None:
    """Print the table."""
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "dags_examples/demo_model/model")
    words = tokenizer.encode((ROOT / "docs/recipes.md").read_text("utf-8"))
    print("# Log probabilities\n")
    print(f"{RESPONSES:,} responses of {TOKENS} tokens. Tokens and alternatives are those of a text, log")
    print(
        f"probabilities are random. One core, Python {platform.python_version()}, no GPU, no model. What the"
    )
    print(f"model itself needs for them is not in it. The best of {ROUNDS} rounds; made by")
    print("`python benchmarks/logprobs.py`.\n")
    print("| `logprobs` | bytes in memory a token | bytes of Parquet | bytes of JSONL | CPU microseconds |")
    print("|---|---|---|---|---|")
    for most in (0, 1, 5, 20):
        memory, parquet, written, spent = measured(most, words, tokenizer)
        print(f"| {most} | {memory:.0f} | {parquet:.0f} | {written:.0f} | {spent:.1f} |")


if __name__ == "__main__":
    main()
