# SPDX-License-Identifier: Apache-2.0
"""The upper bounds to compare with: one call of vLLM's ``LLM`` with all rows, in one process, without Ray.

``LLM.generate`` gets texts that are rendered before the clock starts, ``LLM.chat`` renders them itself.

The workload must fit into memory and nothing is saved before the end, so this is not a way to run batches.
But an engine can't be fed better than with everything at once. Prints one JSON line per workload.

With ``--by-prefix``, another ``LLM.generate`` replaces ``LLM.chat`` and gets the texts sorted, so that common
prefixes follow each other. With ``--alone``, only the first ``LLM.generate`` runs, as with ``--asked``, which
takes names of workloads from its input, line by line.

usage: llm_generate.py [--by-prefix | --alone] DATA_FOLDER WORKLOAD [WORKLOAD ...] [ENGINE_ARGS_JSON]
       llm_generate.py --asked DATA_FOLDER [ENGINE_ARGS_JSON]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    from vllm import LLM, SamplingParams

    folder, *names = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    engine = json.loads(names.pop()) if names and names[-1].startswith("{") else {}
    start = time.time()
    llm = LLM(str(Path(folder) / "model"), **engine)
    startup = time.time() - start
    llm.generate(["warm up " * 12] * 64, SamplingParams(max_tokens=32, ignore_eos=True), use_tqdm=False)
    if "--asked" in sys.argv:
        print("READY", flush=True)
        names = map(str.strip, sys.stdin)  # type: ignore[assignment]
    for name in names:
        measure(llm, Path(folder), name, startup)


def measure(llm: Any, folder: Path, name: str, startup: float) -> None:
    """Print the seconds of one workload, in each of the ways that the command line asks for."""
    import pyarrow.parquet as pq
    from vllm import SamplingParams

    rows = pq.read_table(folder / name).to_pylist()
    params = [SamplingParams.from_optional(**json.loads(row["sampling"])) for row in rows]
    messages = [row["messages"] for row in rows]
    render = llm.get_tokenizer().apply_chat_template
    texts = [render(one, tokenize=False, add_generation_prompt=True) for one in messages]
    ways: dict[str, tuple[Any, Any, list[int]]] = {"LLM.generate": (llm.generate, texts, [*range(len(rows))])}
    if "--by-prefix" in sys.argv:
        by_prefix = sorted(range(len(rows)), key=texts.__getitem__)
        ways = {"LLM.generate, sorted": (llm.generate, texts, by_prefix), **ways}
    elif not {"--alone", "--asked"} & set(sys.argv):
        ways["LLM.chat"] = llm.chat, messages, [*range(len(rows))]
    for system, (call, prompts, order) in ways.items():
        llm.reset_prefix_cache()
        given = [prompts[number] for number in order], [params[number] for number in order]
        start = time.time()
        outputs = call(*given, use_tqdm=False)
        seconds = time.time() - start
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        prompt = sum(len(output.prompt_token_ids) for output in outputs)
        asked = [rows[number] for number in order]
        assert prompt == sum(row["prompt_tokens"] for row in asked), "other prompt tokens than planned"
        assert tokens == sum(row["max_tokens"] for row in asked), "other output tokens than planned"
        result = {
            "system": system,
            "workload": name,
            "rows": len(order),
            "output_tokens": tokens,
            "seconds": round(seconds, 2),
            "startup_seconds": round(startup, 1),
        }
        print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
