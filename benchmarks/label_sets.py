# SPDX-License-Identifier: Apache-2.0
"""Which share of rows has tokens filled in, for sets of labels as users write them.

Give a real model: what matters is how its tokenizer cuts labels, and which tokens the model takes.

    python benchmarks/label_sets.py MODEL [ROWS] > benchmarks/results/label_sets.md
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
ROWS = 40
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
    "{{ message['content'] }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)
SETS: dict[str, tuple[int, str, list[str]]] = {
    "sentiment": (4, "Is this review positive, negative or neutral?", ["positive", "negative", "neutral"]),
    "five shades": (
        8,
        "How positive is this review?",
        ["very positive", "positive", "neutral", "negative", "very negative"],
    ),
    "yes or no": (4, "Does the customer complain?", ["yes", "no", "not sure"]),
    "A to D": (1, "A: praise, B: complaint, C: question, D: other. Which one is it?", list("ABCD")),
    "industries": (
        16,
        "Which sector is this about?",
        [
            "Communication Services", "Consumer Discretionary", "Consumer Staples", "Energy", "Financials",
            "Health Care", "Industrials", "Information Technology", "Materials", "Real Estate", "Utilities",
        ],
    ),
    "languages": (
        5,
        "In which language is this written?",
        [
            "English", "German", "French", "Spanish", "Italian", "Portuguese", "Dutch", "Danish", "Swedish",
            "Norwegian", "Finnish", "Polish", "Czech", "Japanese", "Korean", "Chinese (Simplified)",
            "Chinese (Traditional)",
        ],
    ),
    "ISO codes": (
        2,
        "ISO code of its country?",
        ["AT", "AU", "BE", "BR", "CA", "CH", "CN", "DE", "DK", "ES", "FR", "GB", "IT", "JP", "NL", "US"],
    ),
    "ratings": (2, "Rate this review from 1 to 10.", [str(number) for number in range(1, 11)]),
    "umlauts": (
        8,
        "Wie zufrieden ist der Kunde?",
        ["sehr zufrieden", "zufrieden", "unentschieden", "unzufrieden", "sehr verärgert", "ärgerlich"],
    ),
    "CJK": (4, "这条评论的情感是什么", ["非常积极", "积极", "中性", "消极", "非常消极"]),
}  # fmt: skip
"""Name -> `max_tokens` as users set it, the question, the labels."""
THINGS = ["The camera", "Our hotel in Lyon", "Das Fahrrad", "The new branch of my bank", "这家餐厅"]
REMARKS = [
    "was better than I hoped.", "stopped working after two days and nobody answers.", "is fine, I guess.",
    "ist leider kaputt angekommen.", "cost far too much for what it is!", "比我想象的好。",
    "made my whole family happy. Thank you so much!", "arrived on Tuesday.",
]  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        _, _, model, number, path = sys.argv
        Path(path).write_text(json.dumps(asyncio.run(measure(model, int(number)))))
        return
    model, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROWS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = str(Path(folder) / "measured.json")
        command = [sys.executable, __file__, "--measure", model, str(rows), path]
        # A process of its own, because vLLM's log is its output.
        subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=sys.stderr, check=True)
        found = json.loads(Path(path).read_text())
    print("# Sets of labels as users write them\n")
    print(f"{rows} greedy rows a set, vLLM {found['vllm']} on {os.cpu_count()} CPU cores.")
    print("Made by `python benchmarks/label_sets.py MODEL`.\n")
    print(
        "| labels | `max_tokens` | rows filled | cut off | tokens | tokens in full | requests a row | equal |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, (most, _, _) in SETS.items():
        full, filled = found["full"][name], found["filled"][name]
        equal = sum(one == other for one, other in zip(filled["answers"], full["answers"], strict=True))
        cut = sum(reason == "length" for _, reason in filled["answers"])
        counts = (f"{100 * filled['rows'] / rows:.0f} %", f"{100 * cut / rows:.0f} %", filled["tokens"])
        more = (full["tokens"], f"{filled['requests'] / rows:.2f}", f"{100 * equal / rows:.0f} %")
        print(f"| {name} | {most} | {' | '.join(map(str, counts + more))} |")


async def measure(model: str, rows: int) -> dict[str, Any]:
    """Return answers, tokens and requests of each set, generated in full and with filled tokens."""
    import vllm

    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.engine.vllm import VllmEngine

    document = {
        "source": ["/in.jsonl"],
        "messages_column": "messages",
        "model": model,
        "engine": "vllm",
        "chat_template": TEMPLATE,
        "engine_args": {"max_model_len": 512, "max_num_seqs": 64},
        "sampling": {"temperature": 0},
        "destination": "/out",
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    engine = VllmEngine(spec)
    found: dict[str, Any] = {"vllm": vllm.__version__}
    for way in ("filled", "full"):
        engine._fill_in = way == "filled"
        engine._serve(spec)  # forgets what is known of sampling parameters
        found[way] = {name: await of_one(engine, name, rows) for name in SETS}
        print(way, {name: one["answers"] for name, one in found[way].items()}, flush=True)
    return found


async def of_one(engine: Any, name: str, rows: int) -> dict[str, Any]:
    """What one set of labels comes to."""
    from airflow_provider_raybatch.job.row import Request

    most, question, labels = SETS[name]
    sampling = {"max_tokens": most, "structured_outputs": {"choice": labels}}
    texts = [f"{thing} {remark}" for remark in REMARKS for thing in THINGS]
    chats = [f"{question}\n\n{texts[number % len(texts)]}" for number in range(rows)]
    requests = [Request(messages=[{"role": "user", "content": chat}], sampling=sampling) for chat in chats]
    before = next(engine._numbers)
    raw = await asyncio.gather(*map(engine.generate, engine.encode(requests)))
    asked = next(engine._numbers) - before - 1
    responses = engine.decode(raw)
    return {
        "answers": [(one.completions[0].text, one.completions[0].finish_reason) for one in responses],
        "tokens": sum(engine.tokens(one)[1] for one in raw),
        "rows": sum(one.filled_tokens > 0 for one in responses),
        "requests": asked,
    }


if __name__ == "__main__":
    main()
