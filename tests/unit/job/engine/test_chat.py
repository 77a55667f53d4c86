# SPDX-License-Identifier: Apache-2.0
"""Chat templates and tokenisers, with the demo model's own and with one that adds special tokens."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.engine import ModelArguments
from airflow_provider_raybatch.job.engine.base import most_prompt_tokens
from airflow_provider_raybatch.job.engine.chat import ChatEncoder, hf_renderer, template_of
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.run.ray_data_llm import stages
from tests.support.specs import spec

MODEL = Path(__file__).parents[4] / "dags_examples" / "demo_model" / "model"
LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def adding(tokenizer: Any) -> Any:
    """A tokeniser like Llama's: it puts BOS before every text, and its chat template writes BOS, too."""
    import tokenizers
    import transformers

    words = {"<unk>": 0, "<s>": 1, "hello": 2, "world": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", unk_token="<unk>", chat_template=LLAMA_TEMPLATE
    )


def chat(*texts: str) -> Request:
    return Request(messages=[{"role": "user", "content": text} for text in texts])


def encode(tokenizer: Any, *requests: Request, template: str | None = None, **kwargs: Any) -> list[Any]:
    return list(ChatEncoder(tokenizer, hf_renderer(tokenizer, template, kwargs)).encode(requests))


def test_bos_comes_once_if_template_and_tokeniser_add_it(adding: Any) -> None:
    (ids,) = encode(adding, chat("hello world"))
    assert ids.count(adding.bos_token_id) == 1
    assert ids[0] == adding.bos_token_id
    # Tokenised like any other text, the chat has BOS twice.
    text = adding.apply_chat_template(chat("hello").messages, tokenize=False, add_generation_prompt=True)
    assert adding(text)["input_ids"].count(adding.bos_token_id) == 2


def test_a_chat_is_what_the_tokeniser_itself_makes_of_it(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 3?"}]
    (ids,) = encode(tokenizer, Request(messages=messages))
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == list(expected)
    bos = tokenizer.bos_token_id
    assert bos is None or ids.count(bos) <= 1


def test_a_template_of_ones_own_and_its_variables(adding: Any) -> None:
    template = "{% if loud %}hello {% endif %}{{ messages[0]['content'] }}"
    (quiet,) = encode(adding, chat("world"), template=template)
    (loud,) = encode(adding, chat("world"), template=template, loud=True)
    assert (quiet, loud) == ([3], [2, 3])


def test_kinds_of_requests_mix_and_keep_their_places(adding: Any) -> None:
    made = encode(adding, Request(prompt="hello"), chat("hello"), Request(prompt="world"), chat("world"))
    assert made[0] == [1, 2]
    assert made[2] == [1, 3]
    assert made[1] != made[3]
    assert all(ids[0] == 1 for ids in made)


def test_a_chat_that_its_template_refuses_fails_alone(adding: Any) -> None:
    template = (
        "{% if messages|length > 1 %}{{ raise_exception('only one message, please') }}{% endif %}"
        "{{ messages[0]['content'] }}"
    )
    made = encode(adding, chat("hello"), chat("hello", "world"), chat("world"), template=template)
    assert [made[0], made[2]] == [[2], [3]]
    (broken,) = encode(adding, chat("hello"), template="{% if %}")
    assert isinstance(broken, RowFailure)
    assert "TemplateSyntaxError" in broken.reason
    assert isinstance(made[1], RowFailure)
    assert made[1].step == "template"
    assert "only one message, please" in made[1].reason


def test_the_user_may_leave_a_response_unbegun(adding: Any) -> None:
    template = "{{ messages[0].content }}{% if add_generation_prompt %} answer:{% endif %}"
    rendered = [
        hf_renderer(adding, template, given)(chat("x").messages or [])
        for given in ({}, {"add_generation_prompt": False})
    ]
    assert rendered == ["x answer:", "x"]


def test_a_date_is_that_of_the_run_in_utc(adding: Any) -> None:
    """The template may quote the format in any way; its other text about dates stays the same."""
    inner = "{{ strftime_now('%d %b') }} {{ strftime_now( \"it's %Y\" ) }}"
    template = "{% if strftime_now is defined %}" + inner + "{% endif %}"
    model = ModelArguments(model="m", chat_template=template, template_time=86400.0 * 365)
    filled = template_of(model, adding)
    assert hf_renderer(adding, filled, {})(chat("x").messages or []) == "01 Jan it's 1971"
    assert template_of(ModelArguments(model="m", template_time=5.0), adding) is None


class Picky:
    """A tokeniser that refuses one text, as real ones refuse values that are not text."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, texts: Any, **kwargs: Any) -> Any:
        if "poison" in texts or (isinstance(texts, list) and any("poison" in text for text in texts)):
            raise ValueError("can't tokenise this")
        return self._inner(texts, **kwargs)


def test_a_text_that_cannot_be_tokenised_fails_alone(adding: Any) -> None:
    made = encode(Picky(adding), Request(prompt="hello"), Request(prompt="poison"), chat("world"))
    assert made[0] == [1, 2]
    assert made[1] == RowFailure("tokenize", "ValueError: can't tokenise this")
    assert isinstance(made[2], list)


@pytest.fixture(scope="module")
def extended(adding: Any) -> Any:
    """The same tokeniser with a token that the model, which has 4, was not trained for."""
    copied = copy.deepcopy(adding)
    copied.add_tokens(["<|im_end|>"], special_tokens=True)
    return copied


def test_a_token_that_the_model_lacks_fails_its_row_alone(extended: Any) -> None:
    """Such an id is no row of the model's embedding: it ends the engine, with all its requests."""

    def encode(render: Any, *requests: Request, vocabulary: int | None = 4) -> list[Any]:
        return ChatEncoder(extended, render, vocabulary=vocabulary).encode(requests)

    texts = ("hello", "hello <|im_end|> world", "world", "")
    reason = (
        "the prompt has the token '<|im_end|>' (id 4), and the model's vocabulary has only ids from 0 to 3; "
        "take it out of the row, or use the tokenizer that the model was trained with"
    )
    template = "{{ messages[0]['content'] }}"
    made = encode(hf_renderer(extended, template, {}), *map(chat, texts))
    assert made == [[2], RowFailure("tokenize", reason), [3], []]
    made = encode(None, *(Request(prompt=text) for text in texts))
    assert made == [[1, 2], RowFailure("tokenize", reason), [1, 3], [1]]
    made = encode(lambda messages: [2, 9], chat("hello"))
    assert [one.reason.startswith("the prompt has the token None (id 9)") for one in made] == [True]
    assert encode(None, Request(prompt=texts[1]), vocabulary=None) == [[1, 2, 4, 3]]


def test_ray_stages_use_the_tokenizer_of_the_engine(adding: Any, tmp_path: Path) -> None:
    adding.save_pretrained(tmp_path)
    job = SimpleNamespace(
        spec=spec(engine="ray_data_llm", engine_args={"tokenizer": str(tmp_path)}, model=str(MODEL))
    )
    request = Request(messages=[{"role": "user", "content": "hello world"}])
    (own,) = stages._encoded(job, SimpleNamespace(needs_tokens=True), [request])  # type: ignore[arg-type]
    (expected,) = ChatEncoder(adding, hf_renderer(adding, None, {})).encode([request])
    assert own == expected


def test_ray_stages_know_the_vocabulary_of_the_model(extended: Any, tmp_path: Path) -> None:
    extended.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 4}))
    job = SimpleNamespace(spec=spec(engine="ray_data_llm", model=str(tmp_path)))
    requests = [Request(prompt="hello"), Request(prompt="hello <|im_end|>")]
    good, bad = stages._encoded(job, SimpleNamespace(needs_tokens=True), requests)  # type: ignore[arg-type]
    assert good == [1, 2]
    assert isinstance(bad, RowFailure)
    assert "(id 4)" in bad.reason


@pytest.mark.parametrize(
    ("max_tokens", "room"), [(1000, 1000), (1000.0, 1000), (9999, 2048), (None, 512), (float("nan"), 512)]
)
def test_a_cut_prompt_leaves_room_for_max_tokens(max_tokens: Any, room: int) -> None:
    """Also where pandas wrote a row's number as a float."""
    assert most_prompt_tokens(4096, max_tokens) == 4096 - room
