# SPDX-License-Identifier: Apache-2.0
"""How vLLM's own parsers split texts into reasoning and answer, and which of their traps are noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine.response_parsers import ReasoningSplitter, Split, ToolCaller
from airflow_provider_raybatch.job.preflight.parser_check import check_reasoning
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.tasks.registry import task_of
from tests.support.chat_models import MODELS
from tests.support.specs import spec
from tests.support.vllm_engine import vllm_engine

pytest.importorskip("vllm")
from airflow_provider_raybatch.job.engine import vllm_compat_parsers

TOKENIZER = MODELS["qwen"].tokenizer()
CALLER = MODELS["qwen"].tokenizer()
CALLER.add_tokens(["<tool_call>", "</tool_call>"])
GEMMA = MODELS["gemma"].tokenizer()
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def splitter(name: str, tokenizer: Any = TOKENIZER, **variables: Any) -> ReasoningSplitter:
    parser = vllm_compat_parsers.reasoning_parser(name, tokenizer, variables)
    return ReasoningSplitter(parser, None, tokenizer)


def split(name: str, text: str, prompt: str = "", ended: str = "<|im_end|>", **variables: Any) -> Split:
    """Split a text that the token `ended` ends; none does where it is empty."""
    ids, before = TOKENIZER.encode(text + ended), TOKENIZER.encode(prompt)
    return splitter(name, **variables).split(text, before, ids, is_ended=bool(ended))


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3", "glm45"])
@pytest.mark.parametrize("text", ["<think>ab</think>yes", "ab</think>yes"])
def test_the_answer_is_what_follows_the_reasoning(name: str, text: str) -> None:
    """Many chat templates write the first tag into the prompt."""
    found = split(name, text)
    assert (found.answer, found.reasoning, found.problem) == ("yes", "ab", "")
    assert found.tokens == len(TOKENIZER.encode(text)) - len("yes")


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3"])
def test_a_text_cut_off_while_reasoning_has_no_answer(name: str) -> None:
    assert split(name, "<think>abc", ended="") == Split("", "abc", 4)


def test_a_prompt_with_a_closed_reasoning_is_answered_at_once() -> None:
    """A template of a model that thinks writes an empty reasoning where that is switched off."""
    assert split("deepseek_r1", "yes", "<think>\n\n</think>\n\n") == Split("yes")
    assert split("deepseek_r1", "yes", "</think><|im_start|><think>") == Split("", "yes", 4)


def test_a_text_without_tags_is_what_the_template_says() -> None:
    assert split("qwen3", "yes") == Split("", "yes", 4)
    assert split("qwen3", "yes", enable_thinking=False) == Split("yes")


@pytest.mark.parametrize("name", ["gemma4", "hy_v3", "deepseek_v3", "granite"])
def test_another_models_parser_is_noticed(name: str) -> None:
    found = split(name, "<think>ab</think>yes")
    assert found.problem == "leaves '<think>' in the response, so it is not this model's"
    assert found.answer == "<think>ab</think>yes"


def test_special_tokens_are_left_out_and_their_spelling_is_not() -> None:
    found = split("qwen3", "<think>a</think>b<|fim_prefix|>c")
    assert found.answer == "b<|fim_prefix|>c"  # which the tokenizer does not call special
    assert split("qwen3", "<think>a</think>b<|im_start|>c").answer == "bc"
    spelled = splitter("qwen3").split("<think>a</think>b<|im_end|>c", (), TOKENIZER.encode("x<|im_end|>"))
    assert spelled.answer == "b<|im_end|>c"


def test_tokens_before_a_phrase_are_counted_too() -> None:
    begin, end = "Here is my thought process:", "Here is my response:"
    found = split("granite", f"{begin}ab{end}yes", ended="")
    assert found == Split("yes", "ab", len(f"{begin}ab{end}"))


def test_a_parser_that_fails_fails_its_row_alone() -> None:
    found = split("openai_gptoss", "yes")
    assert found.answer == "yes"
    assert found.problem.startswith("fails at the response (GptOssReasoningParser only ")


class Model:
    """Stands for vLLM's engine: it writes one text."""

    errored = False

    def __init__(self, text: str, tokenizer: Any = TOKENIZER) -> None:
        self._text, self._tokenizer = text, tokenizer
        self.asked: list[tuple[Any, Mapping[str, Any] | None]] = []

    async def generate(
        self, prompt: Any, params: Any, _: str, reasoning_parser_kwargs: Mapping[str, Any] | None = None
    ) -> AsyncIterator[Any]:
        self.asked.append((params, reasoning_parser_kwargs))
        text = self._text if params.detokenize else ""
        ids = self._tokenizer.encode(f"{self._text}<|im_end|>")
        made = SimpleNamespace(token_ids=ids, finish_reason="stop", text=text)
        given = prompt["prompt_token_ids"]
        yield SimpleNamespace(finished=True, prompt_token_ids=given, outputs=[made], num_cached_tokens=0)


def answered(engine: Any, **asked: Any) -> Any:
    async def ask() -> Any:
        return await engine.generate(engine.encode([Request(prompt="p", **asked)])[0])

    (response,) = engine.decode([asyncio.run(ask())])
    return response


@pytest.mark.parametrize("sampling", [{}, {"stop": ["x"]}], ids=["our text", "text of vLLM's"])
def test_an_engine_splits_its_responses_and_tells_vllm_how(sampling: dict[str, Any]) -> None:
    model = Model("a<|im_start|>b</think>c<|im_start|>")
    engine = vllm_engine(TOKENIZER, 500, llm=model)
    variables = {"enable_thinking": True}
    made = spec(
        engine="vllm", model="m", engine_args={"reasoning_parser": "qwen3"}, chat_template_kwargs=variables
    )
    engine._reason(made)
    (completion,) = answered(engine, sampling=sampling).completions
    assert (completion.text, completion.extra) == ("c", {"reasoning": "ab", "reasoning_tokens": 4})
    assert completion.output_tokens == 7
    ((params, about_grammar),) = model.asked
    assert params.skip_special_tokens is False
    assert about_grammar == {"chat_template_kwargs": variables}


def test_calls_of_tools_follow_the_reasoning() -> None:
    """A text beside them is not needed: the calls are the answer."""
    call = '<tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call>'
    model = Model(f"<think>a</think>{call}")
    engine = vllm_engine(CALLER, 500, llm=model)
    made = spec(
        engine="vllm",
        model="m",
        engine_args={"reasoning_parser": "deepseek_r1"},
        tools=[TOOL],
        tool_call_parser="hermes",
    )
    engine._callers = {"": ToolCaller(made, CALLER)}
    engine._reason(made)
    response = answered(engine)
    (completion,) = response.completions
    assert (completion.text, completion.extra["reasoning"]) == ("", "a")
    assert completion.extra["tool_calls"] == [{"name": "add", "arguments": '{"a": 3}'}]
    assert task_of(made).check(response, {}) is response


def test_steps_without_tools_keep_no_special_tokens() -> None:
    """A parser of calls may ask for special tokens, which belong to no answer of another step."""
    tokenizer = MODELS["qwen"].tokenizer()
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"], special_tokens=True)
    call = '{"name": "add", "arguments": {}}'
    engine = vllm_engine(
        tokenizer, 500, llm=Model(f"<think>a</think><tool_call>{call}</tool_call>", tokenizer)
    )
    step = {"name": "act", "prompt": "{row.a}", "tools": [TOOL]}
    reasons = {"engine_args": {"reasoning_parser": "deepseek_r1"}, "tool_call_parser": "hermes"}
    made = spec(engine="vllm", model="m", steps=[step, {"name": "plain", "prompt": "{row.a}"}], **reasons)
    engine._callers = {name: ToolCaller(one, tokenizer) for name, one in made.with_tools.items()}
    engine._reason(made.questions()[0])
    act, plain = (answered(engine, step=step) for step in ("act", "plain"))
    assert [one["name"] for one in act.completions[0].extra["tool_calls"]] == ["add"]
    assert plain.completions[0].text == call


def reasoning_note(made: Any, tokenizer: Any, *requests: Request) -> str:
    chats = SimpleNamespace(text=lambda *_, **__: "")
    loaded: Any = SimpleNamespace(spec=made, tokenizer=tokenizer, chats=chats, requests=requests)
    return check_reasoning(loaded).text


def checked(tokenizer: Any, engine_args: dict[str, Any], **fields: Any) -> str:
    """Return the warning of preflight."""
    made = spec(engine="vllm", model="m", engine_args=engine_args, **fields)
    return reasoning_note(made, tokenizer, Request(prompt="x"))


def test_a_parser_that_fits_the_model_is_let_through() -> None:
    assert checked(TOKENIZER, {"reasoning_parser": "qwen3"}) == ""
    assert checked(TOKENIZER, {"structured_outputs_config": {"reasoning_parser": "deepseek_r1"}}) == ""
    assert checked(GEMMA, {}) == ""


@pytest.mark.parametrize(
    ("tokenizer", "name", "sentence"),
    [
        (
            TOKENIZER,
            "gemma4",
            "engine_args: reasoning_parser 'gemma4' leaves '<think>' in a text, and 'm' has",
        ),
        (
            GEMMA,
            "qwen3",
            "engine_args: reasoning_parser 'qwen3' waits for '</think>', and neither the chat te",
        ),
    ],
)
def test_a_parser_that_may_not_fit_is_a_warning(tokenizer: Any, name: str, sentence: str) -> None:
    assert checked(tokenizer, {"reasoning_parser": name}).startswith(sentence)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("qwen", "engine_args: vLLM [0-9.]+ has no reasoning_parser 'qwen'; did you mean 'qwen3'."),
        ("deepseek_r1", "engine_args: reasoning_parser 'deepseek_r1' does not fit 'm' .*could not locate"),
        ("olmo3", "engine_args: reasoning_parser 'olmo3' does not fit 'm' "),
    ],
)
def test_a_parser_that_can_not_work_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(PreflightError, match=sentence) as caught:
        checked(GEMMA, {"reasoning_parser": name})
    assert "\n" not in str(caught.value)


def test_rays_own_processor_gets_its_parser_unread() -> None:
    made = spec(engine="ray_data_llm", model="m", engine_args={"reasoning_parser": "nothing"})
    assert reasoning_note(made, GEMMA) == ""
