# SPDX-License-Identifier: Apache-2.0
"""How many JSON responses are lost to white space: with vLLM's default grammar, and as a job asks for JSON.

Give a small real model: large ones seldom get lost. Prompts and schemas are as users write them.

    python benchmarks/json_white_space.py MODEL [ROWS] > benchmarks/results/json_white_space.md
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from label_sets import REMARKS, TEMPLATE, THINGS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
ROWS = 60
MOST = 128
"""`max_tokens`: about twice what a whole response needs with indentation."""
WAYS = ("vllm", "job")


def an_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string", "maxLength": 20}
SENTIMENT = {"type": "string", "enum": ["positive", "negative"]}
SCHEMAS = {
    "flat": an_object(sentiment=SENTIMENT, score={"type": "integer", "minimum": 1, "maximum": 10}),
    "list": an_object(topics={"type": "array", "items": TEXT, "maxItems": 3}),
    "open": an_object(name={"type": "string"}, product={"type": "string"}, problem={"type": "string"}),
    "nested": an_object(
        customer=an_object(name=TEXT, city=TEXT),
        complaint=an_object(product=TEXT, serious={"type": "boolean"}),
    ),
}
"""All but the strings of `open` have an end."""
ASKED = "Extract {keys} as JSON."
EXAMPLE = (
    "Zoe writes: My radio is broken.\n"
    'JSON: {"customer": {"name": "Zoe", "city": "Rome"}, "complaint": {"product": "Radio", "serious": true}}'
)
SHAPES = [
    ("a chat without `bos_token`", "flat", f"{ASKED}\n\n{{text}}"),
    ("a chat", "flat", f"{ASKED}\n\n{{text}}"),
    ("a chat", "list", f"{ASKED}\n\n{{text}}"),
    ("a chat", "open", f"{ASKED}\n\n{{text}}"),
    ("a chat", "nested", f"{ASKED}\n\n{{text}}"),
    ("ends in ` ```json `", "nested", f"{{text}}\n\n{ASKED}\n\n```json\n"),
    ("ends in `Return JSON:`", "nested", "{text}\n\nReturn JSON:"),
    ("has an example", "nested", f"{EXAMPLE}\n\n{{text}}\nJSON:"),
    ("the text alone", "flat", "{text}"),
]  # fmt: skip
"""What the prompt is, the schema, the prompt's text. All but chats are raw prompts.

A chat's template says where `bos_token` is: one written by hand may forget it, and the model is weaker then.
"""


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        _, _, one_way, model, count, target = sys.argv
        Path(target).write_text(json.dumps(asyncio.run(measure(one_way, model, int(count)))))
        return
    model, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROWS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found: dict[str, Any] = {}
        for way in WAYS:
            path = Path(folder) / way
            command = [sys.executable, __file__, "--measure", way, model, str(rows), str(path)]
            # A process of its own, because vLLM's log is its output.
            subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=sys.stderr, check=True)
            found[way] = json.loads(path.read_text())
    print("# JSON responses lost to white space\n")
    print(f"{rows} greedy rows each, `max_tokens` {MOST}, vLLM {found['vllm']['version']}.")
    print("Made by `python benchmarks/json_white_space.py MODEL`.\n")
    print("| prompt | schema | vLLM's default: good | white space | otherwise lost | tokens a row |", end="")
    print(" as a job asks: good | white space | otherwise lost | tokens a row |")
    print(f"|{'---|' * 10}")
    for number, (prompt, schema, _) in enumerate(SHAPES):
        counts = itertools.chain.from_iterable(found[way]["shapes"][number] for way in WAYS)
        print(f"| {prompt} | {schema} | {' | '.join(map(str, counts))} |")


async def measure(way: str, model: str, rows: int) -> dict[str, Any]:
    """Return what each shape comes to: rows that are good and lost, and tokens a row."""
    import vllm

    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.engine.vllm import VllmEngine
    from airflow_provider_raybatch.job.preflight.model_check import check_model
    from airflow_provider_raybatch.job.row import RowFailure
    from airflow_provider_raybatch.job.tasks.response_check import checked

    def spec(setting: dict[str, Any], prompt: str = "") -> BatchInferenceSpec:
        document = {
            "source": ["/in.jsonl"],
            "messages_column": "messages",
            "model": model,
            "engine": "vllm",
            "chat_template": TEMPLATE.replace("{{ bos_token }}", "") if "without" in prompt else TEMPLATE,
            "engine_args": {"max_model_len": 1024, "max_num_seqs": 64, **setting},
            "sampling": {"temperature": 0, "max_tokens": MOST},
            "destination": "/out",
        }
        return parse(BatchInferenceSpec, json.dumps(document))

    shapes = [requests_of(shape, rows) for shape in SHAPES]
    checked_model = check_model(spec({}), list(itertools.chain(*shapes)), {})
    setting = {"structured_outputs_config": checked_model.structured_outputs_config} if way == "job" else {}
    engine = VllmEngine(spec(setting))
    found: dict[str, Any] = {"version": vllm.__version__, "shapes": []}
    for shape, requests in zip(SHAPES, shapes, strict=True):
        used = spec(setting, shape[0])
        engine._serve(used)  # the chat template of this shape
        raw = await asyncio.gather(*map(engine.generate, engine.encode(requests)))
        responses = engine.decode(raw)
        results = [checked(one, used, asked.sampling) for one, asked in zip(responses, requests, strict=True)]
        failed = [one.reason for one in results if isinstance(one, RowFailure)]
        blank = sum("it ends in white space" in reason for reason in failed)
        tokens = sum(engine.tokens(one)[1] for one in raw) / rows
        found["shapes"].append([rows - len(failed), blank, len(failed) - blank, f"{tokens:.0f}"])
        texts = [one.completions[0].text for one in responses]
        print(setting, shape[:2], found["shapes"][-1], sorted(set(failed))[:3], texts[:3], flush=True)
    return found


def requests_of(shape: tuple[str, str, str], rows: int) -> list[Any]:
    from airflow_provider_raybatch.job.row import Request

    prompt, schema, template = shape
    sampling = {"structured_outputs": {"json": SCHEMAS[schema]}}
    keys = ", ".join(SCHEMAS[schema]["properties"])
    reviews = itertools.product(("Anna", "Bruno"), THINGS, REMARKS)
    texts = [
        template.replace("{keys}", keys).replace("{text}", f"{name} writes: {thing} {remark}")
        for name, thing, remark in itertools.islice(reviews, rows)
    ]
    assert len(texts) == rows
    if prompt.startswith("a chat"):
        return [Request(messages=[{"role": "user", "content": text}], sampling=sampling) for text in texts]
    return [Request(prompt=text, sampling=sampling) for text in texts]


if __name__ == "__main__":
    main()
