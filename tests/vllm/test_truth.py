# SPDX-License-Identifier: Apache-2.0
"""The engine beside vLLM's own ``LLM``: equal requests, token ids and bytes of text."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.job.tasks.response_check import checked
from dags_examples.demo_model.companies import INDUSTRIES, company_rows
from tests.support.adapters import save_adapter, with_adapter
from tests.support.tools import ADD, WEATHER

pytest.importorskip("vllm.platforms")
from tests.support import beside_vllm
from tests.support.beside_vllm import LORA, assert_equal, ours, theirs
from tests.support.real_model import ARGS, MODEL, SUM, spec

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]
engine = beside_vllm.engine  # a fixture of this module

INDUSTRY = [{"role": "user", "content": "What industry is this company in: Redwood Dairy Farms"}]
LONG = {"temperature": 0, "max_tokens": 24}
SPECIAL = {**LONG, "skip_special_tokens": False}
CHATS: dict[str, list[dict[str, Any]]] = {
    "text": SUM,
    "parts": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "3 + 4?"}],
        }
    ],
    "parts of several kinds": [
        {"role": "system", "content": [{"type": "input_text", "text": "Be brief."}, "Be kind."]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        *SUM,
    ],
    "developer": [{"role": "developer", "content": "Answer in JSON."}, *SUM],
    "tools": [
        *SUM,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"type": "function", "id": "1", "function": {"name": "add", "arguments": '{"a": 3, "b": 4}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "7"}]},
    ],
}
HALVES = ["日本語", "🙂🙃"]
"""Forced on a model that knows no such characters, so that each takes several tokens."""


def test_chats_are_rendered_as_vllm_renders_them(llm: Any, engine: Any) -> None:
    requests = [Request(messages=chat, sampling=LONG) for chat in CHATS.values()]
    before = copy.deepcopy(requests)
    for request, encoded in zip(requests, engine.encode(requests), strict=True):
        assert encoded.ids == theirs(llm, request).prompt_token_ids
    requests.append(Request(prompt="What is 3 + 4?", sampling=LONG))
    responses = assert_equal(llm, engine, *requests)
    assert requests[:-1] == before
    from airflow_provider_raybatch.job.preview.counters import VllmCounter

    counted = VllmCounter(spec()).count(requests)  # a preview counts without an engine
    assert [one.sent for one in counted] == [one.input_tokens for one in responses]


def test_texts_end_where_vllm_ends_them(llm: Any, engine: Any) -> None:
    """The token that ended a completion is left out, whatever stopped it; an incomplete character is, too."""
    ids = list(theirs(llm, Request(messages=INDUSTRY, sampling=LONG)).outputs[0].token_ids)
    samplings: list[dict[str, Any]] = [
        LONG,
        SPECIAL,
        {**LONG, "stop_token_ids": [ids[1]]},
        {**SPECIAL, "stop_token_ids": [ids[1]]},
        {**LONG, "stop_token_ids": [ids[1]], "include_stop_str_in_output": True},
        {**LONG, "stop": ["a"]},
        {**LONG, "ignore_eos": True},
        {**SPECIAL, "ignore_eos": True, "spaces_between_special_tokens": False},
        {"temperature": 1.0, "seed": 5, "n": 3, "max_tokens": 12},
        *({**LONG, "max_tokens": most} for most in (1, 2, 3)),
        *(
            {"temperature": 0, "max_tokens": most, "structured_outputs": {"regex": text}}
            for text in HALVES
            for most in range(1, 13)
        ),
    ]
    responses = assert_equal(
        llm, engine, *(Request(messages=INDUSTRY, sampling=sampling) for sampling in samplings)
    )
    assert responses[2].completions[0].finish_reason == "stop"
    texts = {response.completions[0].text for response in responses[-24:]}
    assert {"", *HALVES} <= texts
    assert not any("\ufffd" in text for text in texts)


def test_choices_are_completed_to_the_text_in_full(llm: Any, engine: Any) -> None:
    """Tokens that a choice forces are not generated, and nothing else changes."""
    labels = [f"{industry} and its suppliers" for industry in INDUSTRIES]
    kinds = ({"choice": labels}, {"json": {"type": "string", "enum": labels}})
    greedy = [{"temperature": 0, "max_tokens": 40, "structured_outputs": outputs} for outputs in kinds]
    asked = [
        [{"role": "user", "content": f"What industry is this company in: {row['company']}"}]
        for row in company_rows(300)[::4]
    ]
    requests = [Request(messages=chat, sampling=greedy[n % 2]) for n, chat in enumerate(asked)]
    responses, expected = ours(engine, *requests), [theirs(llm, request).outputs[0] for request in requests]
    actual = [(one.completions[0].text, one.completions[0].finish_reason) for one in responses]
    assert actual == [(one.text, one.finish_reason) for one in expected]
    assert len({text for text, _ in actual}) > 5
    generated = sum(one.output_tokens for one in responses)
    assert 3 * generated < sum(len(one.token_ids) for one in expected)
    assert sum(one.filled_tokens for one in responses) > generated


@pytest.mark.parametrize(
    "outputs",
    [
        {"choice": ["very good", "very bad", "neither"]},
        {"choice": ["a very long text that nothing in the question asks for", "a very short one"]},
        {"choice": ['"quoted"', "back\\slash", "日本語"]},
        {"choice": ["agriculture and forestry", "agriculture", "banking"]},
        {"choice": ["1", "10", "100", "2"]},
        {"choice": ["ähnlich", "öfter", "日本語", "日本人"]},
        {"json": {"enum": ["agriculture and forestry", "agriculture", "banking"]}},
    ],
)
def test_any_choices_and_samplings_end_as_in_full(
    engine: Any, outputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {"structured_outputs": outputs}
    samplings: list[dict[str, Any]] = [
        *({"temperature": 0, "max_tokens": most, **outputs} for most in (1, 2, 5, 9, 30, 60)),
        *({"temperature": 2.0, "seed": seed, "max_tokens": 60, **outputs} for seed in range(20)),
        {"temperature": 1.0, "seed": 3, "n": 3, **outputs},
        {"temperature": 0, "frequency_penalty": 0.5, **outputs},
        {"temperature": 0, "repetition_penalty": 1.5, **outputs},
        {"temperature": 0, "min_tokens": 2, "max_tokens": 60, **outputs},
        {"temperature": 0, "stop": ["e"], "max_tokens": 60, **outputs},
    ]
    requests = [Request(messages=INDUSTRY, sampling=sampling) for sampling in samplings]
    filled = ours(engine, *requests)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_fill_in", False)
        engine._forget_requests()
        in_full = ours(engine, *requests)
    engine._forget_requests()
    for request, response, expected in zip(requests, filled, in_full, strict=True):
        actual = [(one.text, one.finish_reason) for one in response.completions]
        assert actual == [(one.text, one.finish_reason) for one in expected.completions], request


def test_a_grammar_that_the_engine_can_not_take_is_no_good_row(engine: Any) -> None:
    """One engine has one backend, that of the first such request, and ends others with an empty text."""
    ours(engine, Request(prompt="a", sampling={**LONG, "structured_outputs": {"choice": ["a", "b"]}}))
    sampling = {**LONG, "structured_outputs": {"regex": "(?i)yes|no"}}
    (response,) = ours(engine, Request(prompt="Is it?", sampling=sampling))
    found = checked(response, spec(), sampling)
    assert isinstance(found, RowFailure) or response.completions[0].text.lower() in {"yes", "no"}


def test_tokens_are_counted_while_they_come(engine: Any) -> None:
    sampling = {"temperature": 1.0, "seed": 1, "max_tokens": 200, "ignore_eos": True, "n": 2}
    (encoded,) = engine.encode([Request(messages=SUM, sampling=sampling)])

    async def generate() -> set[int]:
        asked = asyncio.ensure_future(engine.generate(encoded))
        counts = set()
        while not asked.done():
            counts.add(engine.tokens_in_flight())
            await asyncio.sleep(0.01)
        assert engine.tokens(await asked)[1] == 400
        return counts

    assert engine.tokens_in_flight() == 0
    counts = engine.loop.run_until_complete(generate())
    assert len(counts) > 2
    assert max(counts) <= 400
    assert engine.tokens_in_flight() == 0


def test_the_generation_config_in_force_is_vllms(llm: Any, engine: Any, tmp_path: Path) -> None:
    """The request keys use the same effective sampling as vLLM."""
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    request = Request(messages=SUM)
    checked = check_model(AskedModel(spec(), [request], {}))
    assert llm.get_default_sampling_params().temperature == 0.0
    assert checked.generation_defaults == engine.info.effective_sampling
    assert (checked.generation_defaults["temperature"], checked.generation_defaults["top_k"]) == (0.0, 7)
    assert (checked.sampled, checked.context) == (1, llm.llm_engine.model_config.max_model_len)

    (tmp_path / "generation_config.json").write_text(
        json.dumps({"temperature": 0.25, "eos_token_id": [2, 3]})
    )
    folder = {"engine": "vllm", "engine_args": {"generation_config": str(tmp_path)}}
    of_folder = check_model(AskedModel(spec(**folder), [request], {}))
    assert of_folder.generation_defaults == {"temperature": 0.25}
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "eos_token_id": 2}))
    again = check_model(AskedModel(spec(**folder), [request], {}))
    assert len({checked.digests.model, of_folder.digests.model, again.digests.model}) == 3


def test_log_probabilities_are_vllms(llm: Any, engine: Any) -> None:
    """Of generated tokens and of the prompt's, and the texts of tokens decoded alone."""
    asked = {"temperature": 0, "max_tokens": 8, "logprobs": 3, "prompt_logprobs": 1}
    engine.renewed(spec(engine_args={**ARGS, **LORA}, sampling=asked))
    request = Request(messages=SUM, sampling=asked)
    (response,) = ours(engine, request)
    engine.renewed(spec(engine_args={**ARGS, **LORA}))
    expected = theirs(llm, request)
    (completion,), (output,) = response.completions, expected.outputs
    for made, whole in (
        (completion.extra["logprobs"], list(output.logprobs)),
        (response.extra["prompt_logprobs"], list(expected.prompt_logprobs)[1:]),
    ):
        ids, logprobs = made.ids[-len(whole) :].tolist(), made.logprobs[-len(whole) :].tolist()
        for place, position in enumerate(whole):
            assert set(ids[place]) == set(position)
            known = [position[number].logprob for number in ids[place]]
            assert logprobs[place] == pytest.approx(known, abs=1e-4)
            assert made.ranks[-len(whole) :][place] == position[ids[place][0]].rank
    assert response.extra["prompt_logprobs"].ids[:, 0].tolist() == list(expected.prompt_token_ids)
    tokens = completion.extra["logprobs"].ids[:, 0].tolist()
    assert tokens == list(output.token_ids)
    tokenizer = llm.get_tokenizer()
    assert completion.extra["logprobs"].texts[tokens[0]] == tokenizer.decode([tokens[0]])


def prepared(engine: Any, folders: dict[str, Path]) -> None:
    """Let the engine serve a job with these adapters, as a warm engine serves its next job."""
    from airflow_provider_raybatch.job.preflight.adapter_check import adapter_digest

    digests = {name: adapter_digest(str(folder), "") for name, folder in folders.items()}
    adapters = {name: str(folder) for name, folder in folders.items()}
    column = "customer" if adapters else None
    fields = {"adapters": adapters, "adapter_digests": digests, "adapter_column": column}
    engine.renewed(spec(engine_args={**ARGS, **LORA}, **fields))
    engine.loop.run_until_complete(engine.prepare())


def test_rows_get_the_answers_of_their_adapters(engine: Any, tmp_path: Path) -> None:
    """Also beside rows of the model alone, with equal prompts, and when the next job brings others."""
    asked = [f"What is {number} + {number + 4}?" for number in range(3)]
    sampling = {"temperature": 0, "min_tokens": 8, "max_tokens": 8}  # some would say nothing
    first = {name: save_adapter(tmp_path / name, seed) for seed, name in enumerate(("acme", "umbrella"))}
    second = {
        "acme": save_adapter(tmp_path / "changed", 7),
        "other": save_adapter(tmp_path / "other", 8, rank=8),
    }
    for folders in (first, second):
        prepared(engine, folders)
        names = [*folders, None]
        requests = [Request(prompt=text, sampling=sampling, adapter=name) for text in asked for name in names]
        made = [response.completions[0].text for response in ours(engine, *requests)]
        expected = {name: with_adapter(MODEL, folders.get(name or ""), asked, 8) for name in names}
        assert made == [expected[name][place] for place in range(len(asked)) for name in names]
        assert len({tuple(texts) for texts in expected.values()}) == 3
    choices = {"temperature": 0, "structured_outputs": {"choice": ["very good", "very bad", "neither"]}}
    requests = [Request(messages=INDUSTRY, sampling=choices, adapter=name) for name in [*names, "acme"]]
    filled = [response.completions[0].text for response in ours(engine, *requests)]
    engine._fill_in = False
    engine._forget_requests()
    in_full = [response.completions[0].text for response in ours(engine, *requests)]
    engine._fill_in = True
    prepared(engine, {})
    assert filled == in_full


def test_a_bad_adapter_leaves_the_engine_alive(engine: Any, tmp_path: Path) -> None:
    good = save_adapter(tmp_path / "good")
    for bad in (tmp_path / "none", save_adapter(tmp_path / "high", rank=16)):
        digests = {"acme": "1", "bad": f"of {bad}"}
        adapters = {"acme": str(good), "bad": str(bad)}
        fields = {"adapters": adapters, "adapter_digests": digests, "adapter_column": "customer"}
        engine.renewed(spec(engine_args={**ARGS, **LORA}, **fields))
        with pytest.raises(PreflightError, match=r"^adapters: vLLM can't load 'bad' from '"):
            engine.loop.run_until_complete(engine.prepare())
    prepared(engine, {"acme": good})
    (answer,) = ours(
        engine, Request(prompt="What is 3 + 4?", sampling={**LONG, "min_tokens": 24}, adapter="acme")
    )
    assert answer.completions[0].text == with_adapter(MODEL, good, ["What is 3 + 4?"], 24)[0]
    prepared(engine, {})


def renamed(folder: Path, **names: str) -> Path:
    """Rename modules of an adapter, or what is before them."""
    weights = folder / "adapter_model.safetensors"
    content = weights.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end].decode()
    for before, after in names.items():
        header = header.replace(before, after)
    weights.write_bytes(len(header).to_bytes(8, "little") + header.encode() + content[end:])
    return folder


def test_an_adapter_that_fits_no_module_is_refused(engine: Any, tmp_path: Path) -> None:
    """VLLM takes it without a word, and answers as the model alone. Of smaller weights it uses a part."""
    good, name = save_adapter(tmp_path / "good"), ".layers.0.self_attn.q_proj"
    no_head = renamed(save_adapter(tmp_path / "no_head"), **{"model.model.model.": "model.model."})
    pictures = renamed(save_adapter(tmp_path / "pictures"), **{".layers.": ".language_model.layers."})
    narrow = renamed(save_adapter(tmp_path / "narrow"), q_proj="o_proj", v_proj="q_proj")
    for bad, sentence in (
        (
            no_head,
            f"which would answer alone: it is for '{name[1:]}', and adapters may be for 'model{name}', ",
        ),
        (pictures, f"it is for 'model.language_model{name}', and adapters may be for 'model{name}', "),
        (narrow, f"'bad' has weights of other sizes than the model's for 'model{name[:-6]}qkv_proj'; give"),
    ):
        with pytest.raises(PreflightError) as refused:
            prepared(engine, {"acme": good, "bad": bad})
        assert sentence in str(refused.value)
    prepared(engine, {"acme": good})
    prepared(engine, {})


TOOL_TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}{{ '<|assistant|>' }}"
)


def test_a_call_that_tool_choice_asks_for_fits_its_schema(llm: Any, engine: Any) -> None:
    """The prompt is that of ``LLM.chat``; the grammar leaves a small model no other answer than a call.

    Of steps, those that offer tools are shown them, and no other.
    """
    from airflow_provider_raybatch.job.preflight.input_check import SampledRows
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    fields = {"tools": [ADD, WEATHER], "tool_call_parser": "hermes", "chat_template": TOOL_TEMPLATE}
    names = {}
    for choice in ("required", "weather"):
        job = spec(engine_args={**ARGS, **LORA}, **fields, tool_choice=choice)
        assert check_model(AskedModel(job, [Request(messages=SUM)], {})).sampled == 1
        engine.renewed(job)
        engine.loop.run_until_complete(engine.prepare())
        request = Request(messages=SUM, sampling={"temperature": 0, "max_tokens": 80})
        whole, short = ours(engine, request, Request(messages=SUM, sampling={"max_tokens": 5}))
        ids = engine.encode([request])[0].ids
        expected = llm.chat(
            [copy.deepcopy(SUM)], chat_template=TOOL_TEMPLATE, tools=fields["tools"], use_tqdm=False
        )
        assert ids == expected[0].prompt_token_ids
        assert task_of(job).check(whole, {}) is whole
        names[choice] = {call["name"] for call in whole.completions[0].extra["tool_calls"]}
        assert (short.completions[0].finish_reason, short.completions[0].extra) == ("length", {})
    assert names["required"] <= {"add", "weather"}
    assert names["weather"] == {"weather"}
    offers = {"tools": fields["tools"], "tool_choice": "weather"}
    steps = [{"name": "act", "prompt": "{row.text}", **offers}, {"name": "plain", "prompt": "{row.text}"}]
    in_steps = {**fields, "tools": None, "messages_column": None, "steps": steps}
    mixed = spec(engine_args={**ARGS, **LORA}, **in_steps)
    asked = SampledRows([Request(messages=SUM)], [], 1).of_all_steps(mixed).requests
    assert check_model(AskedModel(mixed, asked, {})).sampled == 2
    engine.renewed(mixed)
    engine.loop.run_until_complete(engine.prepare())
    act = Request(messages=SUM, sampling={"temperature": 0, "max_tokens": 80}, step="act")
    plain = Request(messages=SUM, sampling=LONG, step="plain")
    assert engine.encode([act])[0].ids == expected[0].prompt_token_ids
    assert len(engine.encode([plain])[0].ids) < len(expected[0].prompt_token_ids)
    called, answer = ours(engine, act, plain)
    assert (called, answer.completions[0].extra) == (whole, {})
    engine.renewed(spec(engine_args={**ARGS, **LORA}))
    engine.loop.run_until_complete(engine.prepare())


def test_chat_template_without_tools_is_refused(llm: Any) -> None:
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    job = spec(tools=[ADD], tool_call_parser="hermes")
    with pytest.raises(PreflightError, match=r"^chat_template: .* prints no tools"):
        check_model(AskedModel(job, [Request(messages=SUM)], {}))
    job = spec(tools=[ADD], tool_call_parser="mistral", chat_template=TOOL_TEMPLATE)
    with pytest.raises(PreflightError, match="tool_call_parser: 'mistral' does not fit this model"):
        check_model(AskedModel(job, [Request(messages=SUM)], {}))
