# SPDX-License-Identifier: Apache-2.0
"""The texts of a request: special tokens, blank and shortened ones."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.job.engine.chat import ChatEncoder, hf_renderer
from airflow_provider_raybatch.job.request.row_text import SpecialTokens, shortened, special_tokens_of
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.chat_models import MODELS, ChatModel


@pytest.fixture(params=MODELS)
def model(request: Any) -> ChatModel:
    pytest.importorskip("transformers")
    return MODELS[request.param]


def user(text: str) -> Request:
    return Request(messages=[{"role": "user", "content": text}])


def filled(template: str, **row: str) -> Request:
    return user(RowTemplate(template).render(row))


def encode(model: ChatModel, policy: str, *requests: Request) -> list[Any]:
    tokenizer = model.tokenizer()
    encoder = ChatEncoder(tokenizer, hf_renderer(tokenizer, None, {}), model.template, policy)
    return encoder.encode(requests)


def turns(model: ChatModel, ids: list[int]) -> int:
    """Special tokens of a prompt."""
    tokenizer = model.tokenizer()
    known = set(tokenizer.convert_tokens_to_ids(special_tokens_of(tokenizer, model.template)))
    return sum(number in known for number in ids)


def test_special_tokens_in_a_row_act_as_turns_unless_escaped(model: ChatModel) -> None:
    plain, attack = filled("Say {row.text}", text="a"), filled("Say {row.text}", text=f"a{model.turn}")
    (own,) = encode(model, "keep", plain)
    (kept,) = encode(model, "keep", attack)
    assert turns(model, kept) == turns(model, own) + 2
    escaped = encode(model, "escape", plain, attack)
    assert escaped[0] == own
    assert turns(model, escaped[1]) == turns(model, own)
    assert model.turn.replace("<", "< ") in model.tokenizer().decode(escaped[1])


def test_special_tokens_are_dead_letters_where_asked(model: ChatModel) -> None:
    good, bad = encode(model, "error", user("a"), user(f"a{model.turn}"))
    assert isinstance(good, list)
    token = model.turn.partition("\n")[0]
    assert bad == RowFailure(
        "tokenize",
        f"the row's text has the special token {token!r}, which would act as part of the chat; remove it, or "
        "set special_tokens_in_text to 'escape'",
    )


def test_no_mix_of_tokens_and_their_pieces_survives_an_escape(model: ChatModel) -> None:
    """Also where a token lies across two values, or tokens overlap."""
    rng = random.Random(7)
    tokens = special_tokens_of(model.tokenizer(), model.template)
    pieces = [*tokens, *(token[:4] for token in tokens), *(token[4:] for token in tokens), "<", ">", "|", " "]
    texts = ["".join(rng.choices(pieces, k=8)) for _ in range(200)]
    halves = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in texts]
    requests = [filled("Say {row.a}{row.b}", a=a, b=b) for a, b in halves]
    own = turns(model, encode(model, "keep", user("Say"))[0])
    assert {turns(model, ids) for ids in encode(model, "escape", *requests)} == {own}


def test_texts_of_templates_and_other_tokens_are_left_alone(model: ChatModel) -> None:
    special = SpecialTokens(special_tokens_of(model.tokenizer(), model.template))
    template = f"{model.turn}{{row.text}}"
    assert special.found(filled(template, text="a < b, <|fim_prefix|><table>\n\n")) == ""
    attack = filled(template, text=model.turn)
    assert special.found(attack) == model.turn.partition("\n")[0]
    escaped = special.escaped(attack)
    assert escaped == user(model.turn + model.turn.replace("<", "< "))


def test_special_tokens_are_those_that_the_template_writes_too() -> None:
    pytest.importorskip("transformers")
    qwen, gemma = MODELS["qwen"], MODELS["gemma"]
    assert special_tokens_of(qwen.tokenizer(), qwen.template) == [*qwen.special, "<think>", "</think>"]
    assert special_tokens_of(gemma.tokenizer(), gemma.template) == [*gemma.special]
    assert special_tokens_of(object(), "") == []


def test_all_texts_of_a_chat_are_escaped(model: ChatModel) -> None:
    special = SpecialTokens(model.special)
    token = model.special[-1]
    chat = [
        {"role": f"user{token}", "content": [{"type": "text", "text": token}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": token, "b": 1}}}]},
    ]
    made = special.escaped(Request(messages=chat))
    assert token not in str(made.messages)
    assert str(made.messages).count(token.replace("<", "< ")) == 3
    assert special.escaped(Request(prompt=f"a{token}")) == Request(prompt=f"a{token.replace('<', '< ')}")
    assert SpecialTokens([]).found(Request(messages=chat)) == ""


def test_a_token_of_one_character_becomes_a_space() -> None:
    assert SpecialTokens(["§", "§§"]).escaped(user("a§b")) == user("a b")


def test_a_request_knows_its_values_in_another_process() -> None:
    text = pickle.loads(pickle.dumps(RowTemplate("a {row.x} b").render({"x": "v"})))
    assert (text, list(text.values)) == ("a v b", ["v"])


TEMPLATE = RowTemplate("Begin {row.a} middle {row.b} end")


def request_of(a: str, b: str = "") -> Request:
    system = RowTemplate("Title: {row.b}").render({"b": b})
    content = TEMPLATE.render({"a": a, "b": b})
    return Request(messages=[{"role": "system", "content": system}, {"role": "user", "content": content}])


def contents(request: Request) -> list[str]:
    return [message["content"] for message in request.messages or ()]


def characters(request: Request) -> int:
    return sum(map(len, contents(request)))


def words(request: Request) -> int:
    return sum(len(text.split()) for text in contents(request))


@pytest.mark.parametrize("counts", [characters, words])
def test_the_longest_value_is_cut_and_nothing_else(counts: Callable[[Request], int]) -> None:
    whole = request_of("alpha beta " * 2000, "short")
    cut = shortened(whole, counts, counts(whole), 500)
    assert cut is not None
    assert 495 <= counts(cut) <= 500
    system, user = contents(cut)
    assert system == "Title: short"
    value = user.removeprefix("Begin ").removesuffix(" middle short end")
    assert ("alpha beta " * 2000).startswith(value)
    assert "Begin " + value + " middle short end" == user


def test_values_of_one_length_are_cut_alike() -> None:
    cut = shortened(request_of("a" * 5000, "b" * 5000), characters, 15000, 1000)
    assert cut is not None
    _, user = contents(cut)
    assert user.count("aa") == user.count("bb") > 100


def test_a_template_is_never_cut() -> None:
    assert shortened(request_of("a" * 100), characters, 140, 20) is None
    fixed = Request(messages=[{"role": "user", "content": "a " * 100}])
    assert shortened(fixed, words, 100, 20) is None
    assert shortened(Request(prompt="a " * 100), words, 100, 20) is None


@given(st.text(min_size=1, max_size=400), st.text(max_size=400), st.floats(0, 1))
def test_a_cut_prompt_fits(a: str, b: str, share: float) -> None:
    whole, template = request_of(a, b), characters(request_of("", ""))
    most = max(1, int(share * (characters(whole) - 1)))
    cut = shortened(whole, characters, characters(whole), most)
    if cut is None:
        assert template + 3 > most  # for one character of each value
    else:
        assert template < characters(cut) <= most


def test_few_tries_are_needed() -> None:
    """Each one tokenises a prompt of the context's length."""
    counted = []

    def tokens(request: Request) -> int:
        counted.append(request)
        return characters(request) // 4

    whole = request_of("a" * 1_000_000)
    assert shortened(whole, tokens, 250_000, 8000) is not None
    assert len(counted) <= 4
