# SPDX-License-Identifier: Apache-2.0
"""Tokeniser of a query with its documents, each pair as a cross-encoder takes it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_models
from airflow_provider_raybatch.job.engine.base import too_long
from airflow_provider_raybatch.job.engine.chat import of_each
from airflow_provider_raybatch.job.engine.request_values import within
from airflow_provider_raybatch.job.engine.text_encoder import (
    ChunkEncoder,
    ListEncoder,
    TextEncoder,
    text_encoder,
)
from airflow_provider_raybatch.job.request.messages import DOCUMENT, QUERY, pair_of
from airflow_provider_raybatch.job.row import Request, RowFailure


@dataclass(frozen=True)
class Pair:
    """One pair. `second` is where tokens of type 1 begin; ``None`` for a tokeniser without token types."""

    ids: list[int]
    second: int | None = None


class Pairs(list[int]):
    """The token ids of a row's pairs, one pair after another: as many as the row costs."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        super().__init__(itertools.chain.from_iterable(pair.ids for pair in pairs))
        self.pairs = tuple(pairs)


class PairEncoder(TextEncoder):
    """Turns each request into :class:`Pairs`, as ``LLM.score`` does.

    :param spec: whose chat template, if there is one, makes a text of a pair.
    :param separates: whether the tokeniser's own form of a pair is used, with its separator; if not, the
        texts are put together.
    """

    def __init__(self, spec: BatchInferenceSpec, tokenizer: Any, vocabulary: int, separates: bool) -> None:
        super().__init__(tokenizer, spec.special_tokens_in_text, spec.on_overlong, vocabulary, lowers=False)
        self._spec = spec
        self._separates = separates

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        """:class:`Pairs` of each request, or why it has none."""
        requests = list(map(self._as_asked, requests))
        refused = [self._special.failure(one) if self._in_text == "error" else None for one in requests]
        texts = [(query, one) for query, documents in map(pair_of, requests) for one in documents]
        made = iter(self._pairs(texts))
        out: list[Any] = []
        for request, failure in zip(requests, refused, strict=True):
            found = list(itertools.islice(made, len(pair_of(request)[1])))
            failed = next((one for one in found if isinstance(one, RowFailure)), None)
            out.append(failure or failed or Pairs([one for one in found if isinstance(one, Pair)]))
        return out

    def longest(self, ids: Any) -> int:
        """Tokens of the longest pair."""
        return max(len(pair.ids) for pair in ids.pairs)

    def fitted(self, request: Request, ids: Any, context: int, max_tokens: Any) -> Any:
        """The pairs, with documents cut where the model can't take them whole, or a failure.

        :param ids: :class:`Pairs` of the request.
        :param context: tokens that the model takes; a pair may have as many.
        :param max_tokens: not used, since nothing is generated.
        """
        if all(len(pair.ids) <= context for pair in ids.pairs):
            return ids
        query, documents = pair_of(self._as_asked(request))
        fitted: list[Pair] = []
        for number, (document, pair) in enumerate(zip(documents, ids.pairs, strict=True)):
            cut = self._cut(query, document, pair, context)
            if isinstance(cut, RowFailure):
                return (
                    cut if len(documents) == 1 else RowFailure(cut.step, f"document {number}: {cut.reason}")
                )
            fitted.append(cut)
        return Pairs(fitted)

    def _as_asked(self, request: Request) -> Request:
        """The request with the texts that are tokenised."""
        return self._special.escaped(request) if self._in_text == "escape" else request

    def _cut(self, query: str, document: str, pair: Pair, context: int) -> Pair | RowFailure:
        """The pair with as much of the document as the model takes, and the whole query."""
        if len(pair.ids) <= context:
            return pair
        if not self._truncates:
            return too_long(len(pair.ids), context, "pair of query and document")
        ends = [end for _, end in self._tokens_of(document)["offset_mapping"]]
        kept, made = len(ends), pair
        while len(made.ids) > context:
            kept -= len(made.ids) - context
            if kept < 1:
                whole = f"the model's context of {count_of(context, 'token')}"
                return RowFailure("tokenize", f"the query leaves {whole} no room for a document; shorten it")
            (cut,) = self._pairs([(query, document[: ends[kept - 1]])])
            if isinstance(cut, RowFailure):
                return cut
            made = cut
        return made

    def _tokens_of(self, document: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._tokenizer(
            document, add_special_tokens=False, return_offsets_mapping=True
        )
        return found

    def _pairs(self, texts: list[tuple[str, str]]) -> list[Pair | RowFailure]:
        return of_each(texts, self._made)

    def _made(self, texts: Sequence[tuple[str, str]]) -> list[Pair | RowFailure]:
        found = self._tokenised(texts)
        types = found.get("token_type_ids") or [None] * len(texts)
        return [self._pair(*one) for one in zip(found["input_ids"], types, strict=True)]

    def _tokenised(self, texts: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
        found: Mapping[str, Any]
        if self._spec.chat_template is not None:
            found = self._tokenizer([self._rendered_pair(*one) for one in texts])
        elif self._separates:
            found = self._tokenizer([query for query, _ in texts], [document for _, document in texts])
        else:
            found = self._tokenizer([query + document for query, document in texts])
        return found

    def _rendered_pair(self, query: str, document: str) -> str:
        messages = [{"role": QUERY, "content": query}, {"role": DOCUMENT, "content": document}]
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._spec.chat_template,
                tokenize=False,
                **self._spec.chat_template_kwargs,
            )
        )

    def _pair(self, ids: list[int], types: list[int] | None) -> Pair | RowFailure:
        if self._vocabulary is not None and isinstance(
            known := within(ids, self._tokenizer, self._vocabulary), RowFailure
        ):
            return known
        if types is None:
            return Pair(ids)
        second = types.index(1) if 1 in types else len(types)
        if types != [0] * second + [1] * (len(types) - second):
            raise ValueError("the tokenizer's token types are not those of two texts, 0 and then 1")
        return Pair(ids, second)


def pooling_encoder(
    spec: BatchInferenceSpec, tokenizer: Any, config: Any, renderer: Any = None
) -> TextEncoder:
    """The encoder of a job of a pooling model.

    :param config: of the model, as vLLM has it; `renderer` is vLLM's, for chats.
    :raises PreflightError: the model's texts can't be cut as the job says.
    """
    if spec.chunk_tokens is not None:
        return ChunkEncoder(spec, tokenizer, config)
    if not spec.compares:
        kind = ListEncoder if spec.asks_by_lines else TextEncoder
        return text_encoder(spec, tokenizer, config, renderer, kind)
    size = vllm_compat.vocabulary_size(config)
    return PairEncoder(spec, tokenizer, size, vllm_compat_models.separates_pairs(config))
