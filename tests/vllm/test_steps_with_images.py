# SPDX-License-Identifier: Apache-2.0
"""A step that shows images, and one that does not, are answered as by ``LLM.chat`` with the same chats."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.numbered_pictures import Picture
from tests.support.repeated_task import RepeatedTask, rows_of

pytest.importorskip("vllm")
from tests.support.beside_vllm import own_llm
from tests.support.local_ray import local_ray
from tests.support.vision_model import vision_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.thorough("steps with images beside vLLM; each alone runs always"),
]

GREEDY = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
ARGS: dict[str, Any] = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 * 1024**2,
    "max_num_seqs": 16,
    "dtype": "float32",
    "mm_processor_cache_gb": 0,
}
PICTURES = [Picture(number) for number in range(12)]


def asked_by_hand(llm: Any, number: int, picture: Picture) -> tuple[list[str], list[int]]:
    """The answers about a picture, and the tokens of their prompts."""
    from PIL import Image
    from vllm import SamplingParams

    image = {"type": "image_pil", "image_pil": Image.open(io.BytesIO(picture.content())).convert("RGB")}
    said: list[str] = []
    tokens: list[int] = []
    for text, shown in (
        (f"Read {number}", [image]),
        ("Check {}", []),
        ("Once more {}", [image]),
    ):
        text = text.format(*said[:1])
        chat = [{"role": "user", "content": [*shown, {"type": "text", "text": text}] if shown else text}]
        (made,) = llm.chat([chat], SamplingParams(**GREEDY), use_tqdm=False)
        said.append(made.outputs[0].text)
        tokens.append(len(made.prompt_token_ids))
    return said, tokens


def test_each_step_is_answered_as_by_llm_chat(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    model = vision_model(tmp_path / "model")
    source = tmp_path / "in.parquet"
    contents = [one.content() for one in PICTURES]
    pq.write_table(pa.table({"id": range(len(PICTURES)), "scan": contents}), source)
    steps = [
        {"name": "read", "prompt": "Read {row.id}", "images": "scan"},
        {"name": "check", "prompt": "Check {row.read_response}"},
        {"name": "again", "prompt": "Once more {row.read_response}", "images": ["scan"]},
    ]
    with local_ray():
        task = RepeatedTask(tmp_path)
        asked = {"source": [str(source)], "engine": "vllm", "model": model, "engine_args": ARGS}
        rows = rows_of(task.run(**asked, sampling=GREEDY, steps=steps, preserve_order=True))
    with own_llm(model=model, **ARGS) as llm:
        expected = [asked_by_hand(llm, number, one) for number, one in enumerate(PICTURES)]
    names = [step["name"] for step in steps]
    assert [
        ([row[f"{name}_response"] for name in names], [row[f"{name}_input_tokens"] for name in names])
        for row in rows
    ] == expected
    assert len({said[0] for said, _ in expected}) > len(PICTURES) // 2
