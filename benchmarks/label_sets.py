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
    "{% for message in messages %}<start_of_turn>{{ message['role'] }}\n{{ message['content'] }}<end_of_turn>\n"
    "{% endfor %}<start_of_turn>model\n"
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
    "CJK": (4, "这条评论的情感是什么？", ["非常积极", "积极", "中性", "消极", "非常消极"]),
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
        _, _, way, model, number, path = sys.argv
        Path(path).write_text(json.dumps(asyncio.run(measure(way == "filled", model, int(number)))))
        return
    model, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROWS
    full, filled = measured("full", model, rows), measured("filled", model, rows)
    print("# Sets of labels as users write them\n")
    print(
        f"{rows} greedy rows a set, the model {Path(model).name}, vLLM {full['vllm']} on {os.cpu_count()} CPU"
    )
    print("cores. Made by `python benchmarks/label_sets.py MODEL`.\n")
    print("| labels | max_tokens | rows filled | tokens in full | generated | requests | cut off | equal |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (most, _, _) in SETS.items():
        one, other = filled["sets"][name], full["sets"][name]
        equal = sum(a == b for a, b in zip(one["answers"], other["answers"], strict=True))
        cut = sum(reason == "length" for _, reason in one["answers"])
        print(
            f"| {name} | {most} | {one['filled']} | {other['tokens']} | {one['tokens']} | {one['requests']} | "
            f"{cut} | {equal} |"
        )


def measured(way: str, model: str, rows: int) -> dict[str, Any]:
    """Run one variant in a fresh process, whose output is vLLM's log."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "measured.json"
        command = [sys.executable, __file__, "--measure", way, model, str(rows), str(path)]
        subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=sys.stderr, check=True)
        found: dict[str, Any] = json.loads(path.read_text())
        return found


async def measure(fill_in: bool, model: str, rows: int) -> dict[str, Any]:
    """Return answers, tokens and requests of each set."""
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
        "engine_args": {"max_model_len": 512},
        "sampling": {"temperature": 0},
        "destination": "/out",
    }
    engine = VllmEngine(parse(BatchInferenceSpec, json.dumps(document)), fill_in=fill_in)
    return {"sets": {name: await of_one(engine, name, rows) for name in SETS}, "vllm": vllm.__version__}


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
        "filled": sum(one.filled_tokens > 0 for one in responses),
        "requests": asked,
    }


if __name__ == "__main__":
    main()
