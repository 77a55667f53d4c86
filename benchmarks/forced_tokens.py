# SPDX-License-Identifier: Apache-2.0
"""Greedy classification with and without filled tokens: equal responses, fewer tokens, less time.

Rows are companies, choices their industries; each variant has an engine in its own process. The model is
tiny, on vLLM's CPU build, so its steps cost little; a larger model gains more.

    python benchmarks/forced_tokens.py [ROWS] > benchmarks/results/forced_tokens.md
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
ROWS = 10_000
AT_ONCE = 512


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        way, number, path = sys.argv[2:]
        Path(path).write_text(json.dumps(asyncio.run(measure(way == "filled", int(number)))))
        return
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    full, filled = measured("full", rows), measured("filled", rows)
    equal = sum(one == other for one, other in zip(full["answers"], filled["answers"], strict=True))
    print("# Tokens that a choice forces\n")
    cores = f"{os.cpu_count()} CPU cores"
    print(f"{rows:,} greedy rows, choices of industries, the demo model, vLLM {full['vllm']} on {cores},")
    print(f"{AT_ONCE} rows at once. {equal:,} of {rows:,} responses and finish reasons are equal.")
    print("Made by `python benchmarks/forced_tokens.py`.\n")
    print("| | generated in full | with filled tokens | ratio |\n|---|---|---|---|")
    for name, title in (("tokens", "generated tokens"), ("filled", "filled tokens"), ("seconds", "seconds")):
        ratio = f"{full[name] / filled[name]:.2f}" if full[name] and filled[name] else ""
        print(f"| {title} | {full[name]:,} | {filled[name]:,} | {ratio} |")


def measured(way: str, rows: int) -> dict[str, Any]:
    """Run one variant in a fresh process, whose output is vLLM's log."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "measured.json"
        command = [sys.executable, __file__, "--measure", way, str(rows), str(path)]
        subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=sys.stderr, check=True)
        found: dict[str, Any] = json.loads(path.read_text())
        return found


async def measure(fill_in: bool, rows: int) -> dict[str, Any]:
    """Return answers, tokens and seconds of one engine."""
    import vllm

    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.engine.vllm import VllmEngine
    from airflow_provider_raybatch.job.row import Request
    from dags_examples.demo_model.companies import INDUSTRIES, company_rows

    labels = [f"{industry} and its suppliers" for industry in INDUSTRIES]
    document = {
        "source": ["/in.jsonl"],
        "messages_column": "messages",
        "model": str(ROOT / "dags_examples/demo_model/model"),
        "engine": "vllm",
        "sampling": {
            "temperature": 0, "max_tokens": 40, "structured_outputs": {"choice": labels},
        },
        "destination": "/out",
    }  # fmt: skip
    engine = VllmEngine(parse(BatchInferenceSpec, json.dumps(document)), fill_in=fill_in)
    requests = [
        Request(messages=[{"role": "user", "content": f"What industry is this company in: {row['company']}"}])
        for row in company_rows(rows)
    ]
    slots = asyncio.Semaphore(AT_ONCE)

    async def generate(encoded: Any) -> Any:
        async with slots:
            return await engine.generate(encoded)

    began = time.monotonic()
    encoded = engine.encode(requests)
    raw = await asyncio.gather(*map(generate, encoded))
    responses = engine.decode(raw)
    seconds = time.monotonic() - began
    return {
        "answers": [(one.completions[0].text, one.completions[0].finish_reason) for one in responses],
        "tokens": sum(engine.tokens(one)[1] for one in raw),
        "filled": sum(one.filled_tokens for one in responses),
        "seconds": round(seconds, 1),
        "vllm": vllm.__version__,
    }


if __name__ == "__main__":
    main()
