# SPDX-License-Identifier: Apache-2.0
"""Request keys per second of one core, compared with writing the same requests as JSON.

python benchmarks/request_keys.py > benchmarks/results/request_keys.md
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.request.render import render_all
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.tasks.registry import task_of

ROWS = 200_000
ROUNDS = 5

DOCUMENT = {
    "source": ["/data/x.jsonl"],
    "prompt": "What industry is this company in: {row.Company}",
    "system_prompt": "Answer with the category only.",
    "model": "some/model",
    "sampling": {"temperature": 0, "max_tokens": 16},
    "destination": "/out",
}


def rate(function: Callable[[Request], object], requests: Sequence[Request]) -> float:
    """Measure requests a second, the best of some rounds: other work on the machine only slows rounds."""
    best = 0.0
    for _ in range(ROUNDS):
        began = time.process_time()
        for request in requests:
            function(request)
        best = max(best, len(requests) / (time.process_time() - began))
    return best


def main() -> None:
    """Print the table."""
    spec = parse(BatchInferenceSpec, json.dumps(DOCUMENT))
    rows = [{"Company": f"Redwood Dairy Farms {number}"} for number in range(ROWS)]
    requests = [made for made in render_all(task_of(spec).renderer(), rows) if isinstance(made, Request)]
    keyer = Keyer(spec, {}, Digests(model="m" * 32, tokenizer="t" * 32))
    plain, keyed = rate(lambda request: json.dumps(request.messages), requests), rate(keyer.key, requests)
    print("# Request keys\n")
    print(f"{ROWS:,} chats of two short messages, one core, Python {platform.python_version()}, the best of")
    print(f"{ROUNDS} rounds; 2 CPU cores, 24 GiB, no GPU. Made by `python benchmarks/request_keys.py`.\n")
    print("| what | a second | ratio |\n|---|---|---|")
    print(f"| `json.dumps` of the chat alone | {plain:,.0f} | 1.00 |")
    print(f"| request key | {keyed:,.0f} | {keyed / plain:.2f} |")


if __name__ == "__main__":
    main()
