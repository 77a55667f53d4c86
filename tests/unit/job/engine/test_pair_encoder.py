# SPDX-License-Identifier: Apache-2.0
"""Token ids and token types of a query with its documents."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from airflow_provider_raybatch.job.engine.pair_encoder import Pair, Pairs, pooling_encoder
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.specs import spec


class Letters:
    """A tokenizer of single letters as BERT's: 1 before a text, 2 after each, and token types of a pair."""

    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def __init__(self, has_types: bool = True, surplus: int = 0) -> None:
        self.has_types, self.surplus = has_types, surplus

    def __call__(self, text: Any, pair: Any = None, **options: Any) -> dict[str, Any]:
        if "return_offsets_mapping" in options:
            return {"offset_mapping": [(place, place + 1) for place in range(len(text))]}
        pairs = [(one, None) for one in text] if pair is None else zip(text, pair, strict=True)
        made = [self._one(*one) for one in pairs]
        types = {"token_type_ids": [one[1] for one in made]} if self.has_types else {}
        return {"input_ids": [one[0] for one in made], **types}

    def _one(self, text: str, pair: str | None) -> tuple[list[int], list[int]]:
        if "#" in text:
            raise ValueError("no such letter")
        first = [1, *map(ord, text), 2]
        second = [] if pair is None else [*map(ord, pair), 2]
        return first + second, [0] * len(first) + [1 + self.surplus] * len(second)

    def apply_chat_template(
        self, messages: list[dict[str, str]], chat_template: str, tokenize: bool, **options: Any
    ) -> str:
        assert not tokenize
        texts = {message["role"]: message["content"] for message in messages} | options
        return re.sub(r"{{ (\w+) }}", lambda found: texts[found[1]], chat_template)


def encoder(tokenizer: Letters | None = None, separates: bool = True, **fields: Any) -> Any:
    config = SimpleNamespace(get_vocab_size=lambda: 256, use_sep_token=separates)
    asked = {"model_task": "score", "query": "{row.q}", "document": "{row.d}", **fields}
    return pooling_encoder(spec(**asked), tokenizer or Letters(), config)


def asked(query: str, *documents: str) -> Request:
    texts = [("query", query), *(("document", one) for one in documents)]
    return Request([{"role": role, "content": text} for role, text in texts])


def test_pairs_have_the_place_of_their_second_text() -> None:
    one, other = encoder().encode([asked("ab", "c", "de"), asked("a", "b")])
    assert one.pairs == (Pair([1, 97, 98, 2, 99, 2], 4), Pair([1, 97, 98, 2, 100, 101, 2], 4))
    assert one == [*one.pairs[0].ids, *one.pairs[1].ids]
    assert other.pairs == (Pair([1, 97, 2, 98, 2], 3),)
    assert (len(one), encoder().longest(one)) == (13, 7)


def test_a_tokenizer_without_token_types_has_none() -> None:
    """As ModernBERT's, and those of decoders."""
    (made,) = encoder(Letters(has_types=False)).encode([asked("a", "b")])
    assert made.pairs == (Pair([1, 97, 2, 98, 2], None),)


def test_a_model_without_separator_gets_one_text() -> None:
    (made,) = encoder(Letters(has_types=False), separates=False).encode([asked("a", "b")])
    assert made.pairs == (Pair([1, 97, 98, 2], None),)


def test_a_chat_template_makes_the_text() -> None:
    fields = {"chat_template": "{{ query }}-{{ document }}{{ end }}", "chat_template_kwargs": {"end": "."}}
    (made,) = encoder(**fields).encode([asked("a", "b")])
    assert made.pairs == (Pair([1, 97, 45, 98, 46, 2], 6),)


def test_one_pair_fails_its_row_alone() -> None:
    good, failed = encoder().encode([asked("a", "b"), asked("#", "b", "c")])
    assert isinstance(good, Pairs)
    assert (failed.step, failed.reason) == ("tokenize", "ValueError: no such letter")
    (unknown,) = encoder().encode([asked("a", "b", "\u0144")])
    assert unknown.reason.startswith("the prompt has the token ")


def test_token_types_of_another_kind_are_refused() -> None:
    (failed,) = encoder(Letters(surplus=1)).encode([asked("a", "b")])
    assert "token types are not those of two texts" in failed.reason


def test_a_special_token_in_a_document_fails_by_choice() -> None:
    tokenizer = Letters()
    tokenizer.added_tokens_decoder = {2: "[SEP]"}  # type: ignore[misc]
    (failed,) = encoder(tokenizer, special_tokens_in_text="error").encode([asked("a", "b [SEP] c")])
    assert "the special token '[SEP]'" in failed.reason
    (escaped,) = encoder(tokenizer, special_tokens_in_text="escape").encode([asked("a", "[SEP]")])
    assert escaped.pairs[0].ids[3:-1] == [*map(ord, "[ SEP]")]


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        (("bcd",), "the pair of query and document has 7 tokens and the model takes 6; "),
        (("b", "bcd"), "document 1: the pair of query and document has 7 tokens and the model takes 6; "),
    ],
)
def test_a_long_pair_fails(documents: tuple[str, ...], reason: str) -> None:
    request = asked("a", *documents)
    (made,) = encoder().encode([request])
    failed = encoder().fitted(request, made, 6, None)
    assert isinstance(failed, RowFailure)
    assert failed.reason.startswith(reason)


def test_a_document_is_cut_and_the_query_kept_whole() -> None:
    cuts, request = encoder(on_overlong="truncate"), asked("ab", "c", "cdef")
    (made,) = cuts.encode([request])
    assert cuts.fitted(request, made, 9, None) is made
    fitted = cuts.fitted(request, made, 7, None)
    assert fitted.pairs == (made.pairs[0], Pair([1, 97, 98, 2, 99, 100, 2], 4))
    assert len(made) - len(fitted) == 2
    failed = cuts.fitted(request, made, 5, None)
    assert failed.reason == (
        "document 0: the query leaves the model's context of 5 tokens no room for a document; shorten it"
    )


def test_a_document_that_is_cut_stays_escaped() -> None:
    tokenizer = Letters()
    tokenizer.added_tokens_decoder = {2: "[SEP]"}  # type: ignore[misc]
    cuts = encoder(tokenizer, on_overlong="truncate", special_tokens_in_text="escape")
    request = asked("[SEP]", "a [SEP] cde")
    (made,) = cuts.encode([request])
    fitted = cuts.fitted(request, made, len(made) - 2, None)
    assert fitted.pairs == (Pair([1, *map(ord, "[ SEP]"), 2, *map(ord, "a [ SEP] c"), 2], 8),)
