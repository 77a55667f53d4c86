# SPDX-License-Identifier: Apache-2.0
"""How many rows an engine shall work on at once, where the longest answers begin first: the engine alone.

`all` gives it everything at once, `even:N` as many rows as there are tokens for each step of the longest
answer, and the others in groups of at least N. `half` of the rows, every second one, is what one of two GPUs
has: so the ratio of both is what two GPUs can reach. Prints a JSON line each: seconds, and steps with their
milliseconds (median) and seconds, by rows that get a token in them, and by whether a first one is among these
(`begins`: a prompt was computed).

usage: steps_of_one_size.py DATA_FOLDER WORKLOAD all|half ENGINE_ARGS_JSON WAY [WAY ...]
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

BORDERS = (0, 32, 64, 128, 256, 320, 384, 448, 512, 640, 768, 1024, 10**6)


def main() -> None:
    folder, name, part, engine, *ways = sys.argv[1:]
    import pyarrow.parquet as pq
    from vllm import LLM, SamplingParams

    llm = LLM(str(Path(folder) / "model"), **json.loads(engine))
    llm.generate(["warm up " * 12] * 64, SamplingParams(max_tokens=32, ignore_eos=True), use_tqdm=False)
    rows = pq.read_table(Path(folder) / name).to_pylist()
    rows.sort(key=lambda row: -row["max_tokens"])
    rows = rows[::2] if part == "half" else rows
    prompts = [
        llm.get_tokenizer().apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
        for row in rows
    ]
    even = math.ceil(sum(row["max_tokens"] for row in rows) / rows[0]["max_tokens"])
    for way in ways:
        kind, _, group = way.partition(":")
        at_once = even if kind == "even" else len(rows)
        seconds, steps = run(llm, rows, prompts, at_once, int(group or 1))
        result = {"part": part, "way": way, "at_once": at_once, "seconds": round(seconds, 2), "steps": steps}
        print("RESULT", json.dumps(result), flush=True)


def run(
    llm: Any, rows: list[dict[str, Any]], prompts: list[str], at_once: int, group: int
) -> tuple[float, dict[str, Any]]:
    """Answer all rows; return the seconds, and the engine's steps."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    llm.reset_prefix_cache()
    params = [SamplingParams.from_optional(**json.loads(row["sampling"])) for row in rows]
    for one in params:
        one.output_kind = RequestOutputKind.FINAL_ONLY
    steps = Steps(llm)
    begun = inside = tokens = 0
    start = time.time()
    while begun < len(rows) or inside:
        room, waiting = at_once - inside, len(rows) - begun
        if waiting and room >= min(group, waiting):
            for place in range(begun, begun + min(room, waiting)):
                llm.llm_engine.add_request(f"{start}-{place}", prompts[place], params[place])
                begun, inside = begun + 1, inside + 1
        ended = [output for output in llm.llm_engine.step() if output.finished]
        inside -= len(ended)
        tokens += sum(len(output.outputs[0].token_ids) for output in ended)
    seconds = time.time() - start
    assert tokens == sum(row["max_tokens"] for row in rows), "other output tokens than planned"
    return seconds, steps.end()


class Steps:
    """The steps of an engine: when each ended, by its own clock, and how many rows got a token in it."""

    def __init__(self, llm: Any) -> None:
        self._core = llm.llm_engine.engine_core
        self._get = self._core.get_output
        self._seen: set[str] = set()
        self._ended: list[tuple[float, int, bool]] = []
        self._core.get_output = self._noted

    def _noted(self) -> Any:
        outputs = self._get()
        ids = {output.request_id for output in outputs.outputs}
        self._ended.append((outputs.timestamp, len(ids), not ids <= self._seen))
        self._seen |= ids
        return outputs

    def end(self) -> dict[str, list[float]]:
        """Note no more; return number, milliseconds and seconds of the steps."""
        self._core.get_output = self._get
        lasted = [
            (rows, begins, ended - before)
            for (before, _, _), (ended, rows, begins) in itertools.pairwise(self._ended)
        ]
        found: dict[str, list[float]] = {}
        for (low, high), begins in itertools.product(itertools.pairwise(BORDERS), (False, True)):
            seconds = [one for rows, new, one in lasted if low < rows <= high and new == begins]
            if seconds:
                median = round(1000 * statistics.median(seconds), 2)
                name = f"{low + 1} to {high}" + (", begins" if begins else "")
                found[name] = [len(seconds), median, round(sum(seconds), 2)]
        return found


if __name__ == "__main__":
    main()
