# SPDX-License-Identifier: Apache-2.0
"""Ray Data LLM, tuned by its own guide, for comparison.

It uses blocks of 64 rows, 2,048 rows in flight, four actors for each stage on the CPU, and defaults
otherwise. `seconds` run from the first request in the engine to the last row, by vLLM's own clock, without
start-up. Prints one JSON line per workload.

usage: ray_data_llm.py DATA_FOLDER WORKLOAD [WORKLOAD ...] [ENGINE_ARGS_JSON]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

BLOCK = 64
IN_FLIGHT = 2048


def main() -> None:
    import pyarrow.parquet as pq
    import ray
    import ray.data
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    folder, *names = sys.argv[1:]
    engine = json.loads(names.pop()) if names[-1].startswith("{") else {}
    ray.init(
        address="local",
        num_cpus=max(16, os.cpu_count() or 1),  # each actor of a stage needs one
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        logging_level="error",
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    options: dict[str, Any] = {}
    if not ray.cluster_resources().get("GPU"):
        options["placement_group_config"] = {"bundles": [{"CPU": 1}]}
    actors = min(4, (os.cpu_count() or 2) // 2)
    stage = {"enabled": True, "batch_size": BLOCK, "concurrency": (1, actors)}
    for name in names:
        config = vLLMEngineProcessorConfig(
            model_source=str(Path(folder) / "model"),
            engine_kwargs=engine,
            concurrency=1,
            batch_size=BLOCK,
            max_concurrent_batches=IN_FLIGHT // BLOCK,
            chat_template_stage=stage,
            tokenize_stage=stage,
            detokenize_stage=stage,
            **options,
        )
        processor = build_processor(config, preprocess=asked, postprocess=answered)
        rows = ray.data.read_parquet(str(Path(folder) / name)).repartition(target_num_rows_per_block=BLOCK)
        answers = processor(rows).to_pandas()
        planned = pq.read_table(Path(folder) / name, columns=["max_tokens"])["max_tokens"].to_pylist()
        assert len(answers) == len(planned), "rows are missing"
        assert answers["tokens"].sum() == sum(planned), "another number of output tokens than planned"
        result = {
            "system": "Ray Data LLM, tuned",
            "workload": name,
            "rows": len(answers),
            "output_tokens": int(answers["tokens"].sum()),
            "seconds": round(float(answers["ended"].max() - answers["began"].min()), 2),
        }
        print("RESULT", json.dumps(result), flush=True)


def asked(row: dict[str, Any]) -> dict[str, Any]:
    return {"messages": row["messages"], "sampling_params": json.loads(row["sampling"]), "id": row["id"]}


def answered(row: dict[str, Any]) -> dict[str, Any]:
    times = row["metrics"]
    return {
        "id": row["id"],
        "tokens": row["num_generated_tokens"],
        "began": times["queued_ts"],
        "ended": times["last_token_ts"],
    }


if __name__ == "__main__":
    main()
