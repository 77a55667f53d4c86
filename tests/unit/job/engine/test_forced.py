# SPDX-License-Identifier: Apache-2.0
"""A text with filled tokens equals the text of a generation without them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raybatch.job.engine import vllm_compat_parsers
from airflow_provider_raybatch.job.engine.forced import Choices, Vocabulary, choices_in, whole, why_in_full
from tests.support.specs import spec

transformers = pytest.importorskip("transformers")
xgrammar = pytest.importorskip("xgrammar")
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from tests.support.grammar_model import GrammarModel  # noqa: E402 - imports xgrammar

MODEL = Path(__file__).parents[4] / "dags_examples/demo_model/model"
ROOM = 1000
SECTORS = [
    "Communication Services", "Consumer Discretionary", "Consumer Staples", "Energy", "Financials",
    "Health Care", "Industrials", "Information Technology", "Materials", "Real Estate", "Utilities",
]  # fmt: skip
TEXTS = [
    *SECTORS,
    "very positive",
    "very negative",
    "not at all",
    "café au lait",
    "日本語 🙂",
    'a "b" \\c',
] * 3


def byte_level(texts: list[str] = TEXTS, size: int = 400) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def sentence_pieces() -> Tokenizer:
    """A tokenizer like Llama 2's: each word begins with a space; text without a token becomes bytes."""
    every_byte = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    words = {f"▁{word}" for text in TEXTS if text.isascii() for word in text.split()}
    letters = {letter for word in words for letter in word}
    pieces = [("<unk>", 0.0), ("<end>", 0.0), *every_byte, *((piece, -5.0) for piece in sorted(words))]
    pieces += [(piece, -9.0) for piece in sorted(letters - words)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    spaces = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def fast(tokenizer: Tokenizer) -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


TOKENIZERS = {
    "demo model": transformers.AutoTokenizer.from_pretrained(MODEL),
    "byte level": fast(byte_level()),
    "bytes alone": fast(byte_level(["a"], 257)),
    "sentence pieces": fast(sentence_pieces()),
}


def vocabulary(tokenizer: Any) -> Vocabulary:
    return Vocabulary(
        vllm_compat_parsers.token_texts(tokenizer),
        lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
        lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)),
    )


VOCABULARIES = {name: vocabulary(tokenizer) for name, tokenizer in TOKENIZERS.items()}
MODELS = {name: GrammarModel(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def choices_of(texts: list[str], name: str = "demo model") -> Choices:
    choices = VOCABULARIES[name].choices(tuple(texts))
    assert choices is not None
    return choices


NO_CHOICES = "the response is not one of given choices"
BY_NAME = "{} may change the text or its end"
UNFIT = {
    "min_tokens": 1,
    "stop": ["a"],
    "stop_token_ids": [7],
    "bad_words": ["a"],
    "include_stop_str_in_output": True,
    "logprobs": 0,
    "prompt_logprobs": 0,
    "ignore_eos": True,
    "logit_bias": {"7": 1},
    "a_parameter_of_tomorrow": 1,
}
STRUCTURED: list[tuple[Any, str]] = [
    ({"choice": ["no", "not", "yes"]}, ""),
    ({"choice": ["a", "b", "a"]}, ""),
    ({"json": {"enum": ["no", "not"]}}, ""),
    ({"json": '{"type": "string", "enum": ["no", "not"]}'}, ""),
    (None, NO_CHOICES),
    ({"choice": []}, NO_CHOICES),
    ({"regex": "a|b"}, NO_CHOICES),
    ({"choice": ["a"], "disable_fallback": True}, BY_NAME.format("disable_fallback")),
    ({"choice": ["a", ""]}, "a choice is empty or not valid text"),
    ({"choice": ["a", "\ud83d"]}, "a choice is empty or not valid text"),
    ({"choice": ["a", "b" * 40_000]}, "the choices are too large"),
    ({"json": {"enum": ["no", 1]}}, NO_CHOICES),
    ({"json": {"enum": ["a/b"]}}, NO_CHOICES),
    ({"json": {"enum": ["é"]}}, NO_CHOICES),
    ({"json": {"enum": "no"}}, NO_CHOICES),
    ({"json": "no JSON"}, NO_CHOICES),
    ({"json": {"type": "object", "enum": ["a"]}}, NO_CHOICES),
    ({"json": {"enum": ["a", "b"], "minLength": 1}}, NO_CHOICES),
    ({"json": {"enum": ["a"]}, "whitespace_pattern": " "}, BY_NAME.format("whitespace_pattern")),
]


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({}, ""),
        ({"n": 2, "temperature": 0.5, "seed": 1, "max_tokens": 3, "top_p": 0.9, "stop": []}, ""),
        ({"min_tokens": 0, "logprobs": None, "ignore_eos": False}, ""),
        *(({name: value}, BY_NAME.format(name)) for name, value in UNFIT.items()),
        *(({"structured_outputs": structured}, reason) for structured, reason in STRUCTURED),
    ],
)
def test_why_in_full_by_sampling(sampling: dict[str, Any], reason: str) -> None:
    assert why_in_full({"structured_outputs": {"choice": ["yes", "no"]}, **sampling}, spec()) == reason


@pytest.mark.parametrize(
    ("engine_args", "blamed"),
    [
        ({"reasoning_parser": "qwen3"}, "reasoning_parser"),
        ({"structured_outputs_config": {"reasoning_parser": "qwen3"}}, "reasoning_parser"),
        ({"logits_processors": ["module:Class"]}, "logits_processors"),
    ],
)
def test_why_in_full_by_engine(engine_args: dict[str, Any], blamed: str) -> None:
    sampling = {"structured_outputs": {"choice": ["yes", "no"]}}
    reason = why_in_full(sampling, spec(engine="vllm", model="m", engine_args=engine_args))
    assert reason == BY_NAME.format(blamed)


@pytest.mark.parametrize(("backend", "fills"), [("auto", True), ("xgrammar", True), ("guidance", False)])
def test_another_backend_may_write_json_in_another_way(backend: str, fills: bool) -> None:
    engine_args = {"structured_outputs_config": {"backend": backend}}
    asked = spec(engine="vllm", model="m", engine_args=engine_args)
    assert (not why_in_full({"structured_outputs": {"json": {"enum": ["a", "b"]}}}, asked)) is fills
    assert not why_in_full({"structured_outputs": {"choice": ["a", "b"]}}, asked)


@given(st.lists(st.text(st.characters(max_codepoint=300), max_size=8), min_size=1, max_size=6, unique=True))
@settings(deadline=None, max_examples=30)
def test_texts_of_an_enum_are_all_that_its_grammar_allows(values: list[str]) -> None:
    schema = {"type": "string", "enum": values}
    texts = choices_in({"json": schema})
    if not texts:
        return
    grammar = str(xgrammar.Grammar.from_json_schema(json.dumps(schema)))
    (root,) = [line for line in grammar.splitlines() if line.startswith("root ::= ")]
    assert root == "root ::= (" + " | ".join(f"({json.dumps(text)})" for text in texts) + ")"


def generated(name: str, choices: list[str], seed: int, eager: float) -> list[int]:
    """Return all tokens of a generation; the last one ends it."""
    chance, matcher, ids = random.Random(seed), MODELS[name].begin(choices), list[int]()
    while not matcher.is_terminated():
        ids.append(MODELS[name].next(matcher, chance, eager))
    return ids


ALPHABETS = st.sampled_from(["ab", "ab ", "Consumer Staples", 'é日🙂"\\x'])
SETS = st.one_of(
    st.sampled_from([SECTORS, TEXTS[11:17], ["only one"], ["ab", "ac", "b"]]),
    ALPHABETS.flatmap(
        lambda letters: st.lists(st.text(letters, min_size=1, max_size=12), min_size=1, max_size=8)
    ),
).filter(lambda texts: not why_in_full({"structured_outputs": {"choice": texts}}, spec()))


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(
    texts=SETS,
    seed=st.integers(0, 2**32),
    eager=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    may_miss=st.booleans(),
)
def test_completed_texts_are_those_in_full(
    name: str, texts: list[str], seed: int, eager: float, may_miss: bool
) -> None:
    choices = VOCABULARIES[name].choices(tuple(texts))
    if choices is None:
        assert name == "sentence pieces"  # the others give every text back
        return
    whole = generated(name, texts, seed, eager)
    expected = VOCABULARIES[name].text(whole[:-1])
    assert expected is not None
    for cap in [choices.cap(ROOM, may_miss), *range(1, 1 + len(whole))]:
        if cap is None or cap >= len(whole):
            continue
        found, rest = choices.complete(whole[:cap]), choices.rest(whole[:cap])
        if found is not None:
            assert found == expected.decode()
            assert found in texts
        elif cap == choices.cap(ROOM, may_miss):
            assert may_miss, "no text may be open where it can't go on"
        begun = VOCABULARIES[name].text(whole[:cap]) or b""
        if begun.decode(errors="ignore").encode() == begun:
            assert {begun.decode() + text for text in rest} == {
                text for text in texts if text.encode().startswith(begun)
            }
        else:
            assert not rest
            assert found is not None or choices.may_split_characters


STAPLES = ["Consumer Discretionary", "Consumer Staples", "Energy"]


@pytest.mark.parametrize(
    ("name", "texts", "may_miss", "cap"),
    [
        # A few texts may be open: where one rating of ten begins with another one, nine need one token.
        ("byte level", ["yes", "no", "perhaps"], True, 1),
        ("byte level", [str(number) for number in range(1, 11)], True, 1),
        ("byte level", STAPLES, True, 2),
        ("byte level", ["no", "not"], True, 2),
        # The longest tokens count if the tokenizer adds a space.
        ("sentence pieces", ["Energy", "Materials"], True, 1),
        # First letters that differ decide for any model, also with random sampling.
        ("demo model", ["agriculture", "banking", "construction"], True, 1),
        ("demo model", ["agriculture", "banking", "construction"], False, 1),
        # What can't go on is generated until no text is open: another try would change probabilities.
        ("byte level", STAPLES, False, len("Consumer ") + 1),
        ("bytes alone", STAPLES, False, len("Consumer ") + 1),
        ("demo model", ["no", "not"], False, len("no") + 1),
    ],
)
def test_cap(name: str, texts: list[str], may_miss: bool, cap: int) -> None:
    assert choices_of(texts, name).cap(ROOM, may_miss) == cap


def test_a_limit_that_could_cut_a_choice_is_kept() -> None:
    """Where the context leaves no more."""
    text = "agriculture"
    choices = choices_of([text, "banking"], "bytes alone")
    for may_miss in (True, False):
        assert choices.cap(len(text) + 1, may_miss) == 1
        assert choices.cap(len(text), may_miss) is None


@pytest.mark.parametrize(
    ("sampling", "most"),
    [
        ({"max_tokens": 4}, len("sehr schön".encode()) + 1),
        ({"max_tokens": 100}, 100),
        ({"max_tokens": None}, None),
        ({}, None),
        ({"max_tokens": 4, "stop": ["x"], "logprobs": 1, "min_tokens": 1}, len("sehr schön".encode()) + 1),
        ({"max_tokens": 4, "ignore_eos": True}, 4),
        ({"max_tokens": 4, "structured_outputs": {"regex": "a long one|b"}}, 4),
        ({"max_tokens": 4, "structured_outputs": {"choice": [1, None]}}, 4),
        ({"max_tokens": 4, "structured_outputs": {"choice": ["\ud83d, no character"]}}, 16),
        ({"max_tokens": 4, "structured_outputs": {"json": {"enum": ["very good", "bad"]}}}, 12),
        ({"max_tokens": "4"}, "4"),
    ],
)
def test_max_tokens_is_as_long_as_the_longest_choice_needs(sampling: dict[str, Any], most: Any) -> None:
    """Whatever else keeps it from being filled in. What is not for us to judge stays as it is."""
    given = {"structured_outputs": {"choice": ["gut", "sehr schön"]}, **sampling}
    made = whole(given)
    assert made.get("max_tokens") == most
    assert {**made, "max_tokens": given.get("max_tokens")} == {"max_tokens": None, **given}


def test_a_model_that_takes_other_tokens_gets_more_of_them() -> None:
    choices = choices_of(SECTORS)
    first = choices.cap(ROOM, True)
    assert first is not None
    for _ in range(1000):
        choices.count(first, missed=False)
    for _ in range(500):
        choices.count(first, missed=True)
    assert choices.cap(ROOM, True) == first
    for _ in range(100):
        choices.count(first, missed=True)
    assert choices.cap(ROOM, True) == first + 1


def test_filled_tokens_are_those_left_and_the_end() -> None:
    choices = choices_of(SECTORS)
    ids = TOKENIZERS["demo model"].encode("Real Estate", add_special_tokens=False)
    assert [choices.filled("Real Estate", ids[:size]) for size in (1, len(ids))] == [len(ids), 1]
    unusual = VOCABULARIES["demo model"].ids[b"R"]
    assert choices.filled("Real Estate", [unusual]) == 1 + len(
        VOCABULARIES["demo model"].longest_tokens(b"eal Estate")
    )


def test_a_tokenizer_without_known_bytes_completes_nothing() -> None:
    tokenizer = TOKENIZERS["demo model"]
    unknown = Vocabulary(vllm_compat_parsers.token_texts(object()), tokenizer.encode, tokenizer.decode)
    assert unknown.choices(("yes", "no")) is None


def test_special_tokens_spell_nothing() -> None:
    tokenizer = TOKENIZERS["demo model"]
    assert VOCABULARIES["demo model"].text([tokenizer.eos_token_id]) is None
