# SPDX-License-Identifier: Apache-2.0
"""A model that reasons, as a real vLLM runs it: the grammar begins where the reasoning ends."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.job.row import Request, Response, RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of

pytest.importorskip("vllm")
from tests.support.real_model import ARGS, MODEL, spec

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.thorough("a reasoning and its form, beside vLLM; unit/job/engine runs always"),
]

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|user|>{{ message.content }}<|end|>{% endfor %}"
    "<|assistant|><think>{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"
)
CHOICE = {"structured_outputs": {"choice": ["very good", "very bad"]}}
GREEDY = {"temperature": 0, "max_tokens": 24}


def reasoner(folder: Path) -> str:
    """Copy the demo's model, with two of its special tokens as the tags of a reasoning."""
    shutil.copytree(MODEL, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("<|system|>", "<think>").replace("<|pad|>", "</think>"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": config["eos_token"]}))
    return str(folder)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from airflow_provider_raybatch.job.engine.vllm import VllmEngine

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    model = reasoner(tmp_path_factory.mktemp("model") / "reasoner")
    made: Any = VllmEngine(asked(model))
    made.loop, made.model = loop, model
    yield made
    made.close()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()


def asked(model: str, **fields: Any) -> Any:
    args = {**ARGS, "reasoning_parser": "deepseek_r1"}
    return spec(model=model, engine_args=args, chat_template=TEMPLATE, **fields)


def answer(engine: Any, of_row: dict[str, Any], **fields: Any) -> Response | RowFailure:
    """Ask one row as a replica does."""
    made = asked(engine.model, **fields)
    (encoded,) = engine.renewed(made).encode([
        Request(messages=[{"role": "user", "content": "How is it?"}], sampling={**GREEDY, **of_row})
    ])
    (response,) = engine.decode([engine.loop.run_until_complete(engine.generate(encoded))])
    return task_of(made).check(response, of_row)


def test_the_answer_after_a_reasoning_has_its_form(engine: Any) -> None:
    found = answer(engine, {**CHOICE, "thinking_token_budget": 2, "logprobs": 0}, sampling={"logprobs": 0})
    assert isinstance(found, Response)
    (completion,) = found.completions
    assert completion.text in CHOICE["structured_outputs"]["choice"]
    assert completion.extra["reasoning"]
    assert "think>" not in completion.extra["reasoning"]
    assert 2 <= completion.extra["reasoning_tokens"] < completion.output_tokens
    assert len(completion.extra["logprobs"].ids) == completion.output_tokens


def test_a_reasoning_without_end_gives_no_answer(engine: Any) -> None:
    """The model's end token ends the request inside of its reasoning, too, and no grammar had begun."""
    found = answer(engine, CHOICE)
    assert isinstance(found, RowFailure)
    assert found.step == "parse"
    assert "no answer" in found.reason


def test_a_prompt_that_closed_the_reasoning_is_answered_at_once(engine: Any) -> None:
    found = answer(engine, CHOICE, chat_template_kwargs={"enable_thinking": False})
    assert isinstance(found, Response)
    (completion,) = found.completions
    assert completion.text in CHOICE["structured_outputs"]["choice"]
    assert (completion.extra["reasoning"], completion.extra["reasoning_tokens"]) == (None, 0)
