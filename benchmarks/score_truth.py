# SPDX-License-Identifier: Apache-2.0
"""Labels and scores of the engine beside those of vLLM's own ``LLM.classify`` and ``LLM.score``, row by row.

Models are small, with random weights, in float32, on vLLM's CPU build. Each case is a process of its own:

    make score-truth
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.chaos.version import version
from tests.support.small_models import LONGEST, WORDS, classifier

ROWS = 400
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}relevant?"
ARGS = {"dtype": "float32", "enforce_eager": True}


@dataclass(frozen=True)
class Case:
    """What is compared: `labels` of a classifier, or a cross-encoder with one."""

    kind: str
    labels: tuple[str, ...] = ("LABEL_0",)
    template: str | None = None
    raw: bool = False

    @property
    def compares(self) -> bool:
        """Whether it is a cross-encoder."""
        return len(self.labels) == 1


CASES = {
    "BERT, three labels, `LLM.classify`": Case("bert", ("good", "so so", "bad")),
    "ModernBERT, two labels, `LLM.classify`": Case("modernbert", ("yes", "no")),
    "BERT cross-encoder, `LLM.score`": Case("bert"),
    "ModernBERT cross-encoder, `LLM.score`": Case("modernbert"),
    "BERT, three labels, logits": Case("bert", ("good", "so so", "bad"), raw=True),
    "Qwen3 with a head and a chat template, `LLM.score`": Case("qwen3", template=TEMPLATE),
}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measured(CASES[sys.argv[1]])))
        return
    found = {}
    for name in CASES:
        done = subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, found[name], file=sys.stderr)
    report(found)


def texts_of(rows: int, longest: int, seed: int) -> list[str]:
    pick = random.Random(seed)
    return [" ".join(pick.choices(WORDS, k=pick.randint(1, longest))) for _ in range(rows)]


def measured(case: Case) -> dict[str, Any]:
    # The engine of ``LLM`` is in this process, since one more takes half a minute to start.
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    room = 12 if case.template else 40  # vLLM would cut the end of the template
    queries, texts = texts_of(ROWS, room // 2, 1), texts_of(ROWS, room, 2)
    if not case.template:
        texts[-1] = " ".join(["harbor"] * 2 * LONGEST)  # which is cut
    with tempfile.TemporaryDirectory() as folder:
        model = classifier(Path(folder, "model"), case.kind, case.labels)
        theirs, seconds_of_llm = by_llm(case, model, queries, texts)
        del os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]
        return {**by_engine(case, model, queries, texts, theirs), "seconds_of_llm": seconds_of_llm}


def by_llm(case: Case, model: str, queries: list[str], texts: list[str]) -> tuple[Any, float]:
    """The numbers of each row, and the seconds that they took."""
    from vllm import LLM, PoolingParams

    from airflow_provider_raybatch.job.engine.vllm_args import cpu_defaults

    llm = LLM(model, **cpu_defaults(model, ARGS) | ARGS)
    params = PoolingParams(use_activation=not case.raw)
    cut = {} if case.template else {"tokenization_kwargs": {"truncate_prompt_tokens": LONGEST}}
    began = time.monotonic()
    if not case.compares:
        made = llm.classify(texts, pooling_params=params, use_tqdm=False, **cut)
        return np.array([one.outputs.probs for one in made]), time.monotonic() - began
    scored = llm.score(
        queries, texts, pooling_params=params, use_tqdm=False, chat_template=case.template, **cut
    )
    return np.array([[one.outputs.score] for one in scored]), time.monotonic() - began


def by_engine(case: Case, model: str, queries: list[str], texts: list[str], theirs: Any) -> dict[str, Any]:
    """What a job makes of the rows, as it is published, beside `theirs`."""
    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.engine.pair_encoder import Pair, Pairs
    from airflow_provider_raybatch.job.engine_process import server
    from airflow_provider_raybatch.job.row import Response
    from airflow_provider_raybatch.job.tasks.registry import task_of

    asks: dict[str, Any] = {"prompt_column": "text"}
    if case.compares:
        asks = {"query": "{row.query}", "documents_column": "texts", "chat_template": case.template}
    document: dict[str, Any] = {
        "source": ["/not/read"],
        "destination": "/not/written",
        "model": model,
        "model_task": "score" if case.compares else "classify",
        "pooling": {"use_activation": False} if case.raw else {},
        "on_overlong": "truncate",
        "engine_args": ARGS,
        **asks,
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    rows = [
        {"query": query, "texts": [text], "text": text} for query, text in zip(queries, texts, strict=True)
    ]
    engine = server.open_vllm(spec)
    loop = asyncio.new_event_loop()

    async def made(encoded: list[Any]) -> list[Any]:
        return await asyncio.gather(*map(engine.generate, encoded))

    began = time.monotonic()
    encoded = engine.encode(_requests(spec, rows))
    responses = engine.decode(loop.run_until_complete(made(encoded)))
    seconds = time.monotonic() - began
    ranked = {"query": queries[0], "texts": texts[:50]}
    blind: list[Any] = []
    many = None
    if case.compares:
        (together,) = engine.encode(_requests(spec, [ranked]))
        singles = engine.encode(_requests(spec, [{**ranked, "texts": [text]} for text in ranked["texts"]]))
        (many,) = engine.decode(loop.run_until_complete(made([together])))
        one_by_one = engine.decode(loop.run_until_complete(made(singles)))
        for one in encoded:
            object.__setattr__(one, "ids", Pairs([Pair(pair.ids) for pair in one.ids.pairs]))
        blind = engine.decode(loop.run_until_complete(made(encoded)))
    engine.close()
    for waiting in asyncio.all_tasks(loop):
        waiting.cancel()
    loop.run_until_complete(asyncio.sleep(0.1))
    task = task_of(spec)
    checked = [task.check(response, {}) for response in responses]
    outputs = task.outputs([one for one in checked if isinstance(one, Response)])
    task = task.measured([pa.chunked_array([outputs])])
    columns = dict(zip(task.published_type.names, task.published(pa.chunked_array([outputs])), strict=True))
    ours = np.array([one.pooled for one in responses])
    return {
        "rows": len(ours),
        "difference": float(np.abs(ours - theirs).max()),
        "spread": [float(ours.min()), float(ours.max())],
        "cut": int(sum(one.truncated_prompt_tokens for one in responses)),
        "column": str(next(iter(columns.values())).type if case.compares else columns["probabilities"].type),
        "same_labels": None
        if case.compares
        else sum(
            label == case.labels[int(one.argmax())]
            for label, one in zip(columns["label"].to_pylist(), theirs, strict=True)
        ),
        "together": None
        if many is None
        else float(np.abs(many.pooled - np.concatenate([one.pooled for one in one_by_one])).max()),
        "blind": float(np.abs(np.array([one.pooled for one in blind]) - theirs).max()) if blind else None,
        "seconds": seconds,
    }


def _requests(spec: Any, rows: list[dict[str, Any]]) -> list[Any]:
    from airflow_provider_raybatch.job.request.render import render_all, renderer

    return list(render_all(renderer(spec), rows))


def report(found: dict[str, dict[str, Any]]) -> None:
    import vllm

    print("# Labels and scores beside vLLM's own\n")
    print(f"Small models with random weights in float32, {ROWS} rows each, one of them cut (not with Qwen3),")
    print(f"Python {sys.version.split()[0]}, vLLM {vllm.__version__}; {os.cpu_count()} CPU cores, no")
    print(f"GPU. Made by `python benchmarks/score_truth.py`. Of commit {version()}.\n")
    print("| model | rows | numbers from, to | largest difference | of one row and many | no token types |")
    print("|---|---|---|---|---|---|")
    for name, one in found.items():
        low, high = one["spread"]
        others = [f"{one[key]:.1e}" if one[key] is not None else "" for key in ("together", "blind")]
        cells = [name, one["rows"], f"{low:.3f}, {high:.3f}", f"{one['difference']:.1e}", *others]
        print(f"| {' | '.join(map(str, cells))} |")
    labels = [one["same_labels"] for one in found.values() if one["same_labels"] is not None]
    print(f"\nLabels are those of the largest number of `LLM.classify` in {min(labels)} of {ROWS} rows.")
    print(
        "*Of one row and many*: scores of 50 documents in one row beside those of 50 rows. *No token types*:"
    )
    print("the largest difference if vLLM were not told where the document begins. Columns:")
    for column in dict.fromkeys(one["column"] for one in found.values()):
        print(f"`{column}`")
    slowest = max(one["seconds"] / one["seconds_of_llm"] for one in found.values())
    print(f"Time beside `LLM`, tokenising included: at most {slowest:.1f} times.")


if __name__ == "__main__":
    main()
