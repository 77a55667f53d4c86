# SPDX-License-Identifier: Apache-2.0
"""The demo's model as a real vLLM has it in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vllm import platforms

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

MODEL = Path(__file__).parents[2] / "dags_examples/demo_model/model"
ARGS = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 256 * 1024**2,
    "max_num_seqs": 16,
    # Several times faster on CPUs without instructions for bfloat16.
    "dtype": "float32" if platforms.current_platform.is_cpu() else "auto",
    "override_generation_config": {"temperature": 0.0, "top_k": 7},
}
SUM = [{"role": "user", "content": "What is 3 + 4?"}]


def spec(**fields: Any) -> BatchInferenceSpec:
    document = {
        "source": ["/data/in.jsonl"],
        "messages_column": "messages",
        "model": str(MODEL),
        "engine": "vllm",
        "engine_args": ARGS,
        "destination": "/data/out",
        **fields,
    }
    return parse(BatchInferenceSpec, json.dumps(document))
