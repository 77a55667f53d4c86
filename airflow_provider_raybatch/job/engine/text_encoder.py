# SPDX-License-Identifier: Apache-2.0
"""Tokenisers of pooling models, on batches: whole texts and chats, texts in chunks, and lists of texts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.base import too_long
from airflow_provider_raybatch.job.engine.chat import ChatEncoder, RenderChat, of_each, template_of
from airflow_provider_raybatch.job.engine.text_chunks import Offsets, TextChunk, excerpt, spans
from airflow_provider_raybatch.job.row import Request, RowFailure


class TextEncoder(ChatEncoder):
    """Turns the text of each request into token ids, with the tokeniser's special tokens around it.

    A chat, which only a classifier gets, is rendered as it is.

    :param lowers: whether the model's sentence-transformers config asks for text in lower case.
    """

    def __init__(
        self,
        tokenizer: Any,
        special_tokens: str,
        on_overlong: str,
        vocabulary: int | None,
        lowers: bool,
        render: RenderChat | None = None,
    ) -> None:
        super().__init__(tokenizer, render or _no_chat, "", special_tokens, on_overlong, vocabulary)
        self._lowers = lowers
        self._opening, self._closing = tokens_around(tokenizer)

    def texts(self, requests: Sequence[Request]) -> list[str | list[int] | RowFailure]:
        """See the base; in lower case where the model's config asks for it."""
        if self._lowers:  # first, as in vLLM, whose special tokens are in lower case then
            requests = [
                one if one.prompt is None else replace(one, prompt=one.prompt.lower()) for one in requests
            ]
        return super().texts(requests)

    def has_special_tokens(self, request: Request) -> bool:
        """Texts have no turns of a chat that a special token could begin."""
        return False

    def fitted(
        self, request: Request, ids: list[int], context: int, max_tokens: Any
    ) -> list[int] | RowFailure:
        """The first of the tokens that the model takes and the closing special ones, or a failure.

        :param context: tokens that the model takes; a text may have as many.
        :param max_tokens: not used, since nothing is generated.
        """
        if len(ids) <= context:
            return ids
        room = context - len(self._closing)
        if not self._truncates or room < 1:
            return too_long(len(ids), context)
        return [*ids[:room], *self._closing]


def tokens_around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that a tokeniser puts before and behind each text, as ``[CLS]`` and ``[SEP]``."""
    whole, text = (tokenizer("x", add_special_tokens=special)["input_ids"] for special in (True, False))
    starts = range(len(whole) - len(text), -1, -1)
    start = next((place for place in starts if whole[place : place + len(text)] == text), len(whole))
    return list(whole[:start]), list(whole[start + len(text) :])


def text_encoder(
    spec: BatchInferenceSpec,
    tokenizer: Any,
    config: Any,
    renderer: Any = None,
    kind: type[TextEncoder] = TextEncoder,
) -> TextEncoder:
    """The encoder of a job.

    :param config: of the model, as vLLM has it; `renderer` is vLLM's, for chats.
    :param kind: of the encoder.
    """
    render = None
    if renderer is not None:
        variables = {"add_generation_prompt": False, **spec.chat_template_kwargs}
        render = vllm_compat.chat_renderer(renderer, template_of(spec, tokenizer), variables)
    return kind(
        tokenizer,
        spec.special_tokens_in_text,
        spec.on_overlong,
        vllm_compat.vocabulary_size(config),
        lowers_text(config),
        render,
    )


def lowers_text(config: Any) -> bool:
    """Whether vLLM lowers the texts of a model with this config before they are tokenised."""
    encoder: Mapping[str, Any] = getattr(config, "encoder_config", None) or {}
    return bool(encoder.get("do_lower_case", False))


def _no_chat(messages: list[dict[str, Any]]) -> str:
    raise ValueError("a pooling model takes a text, and this request is a chat")


class Chunks(list[int]):
    """The token ids of a row's chunks, one after another: as many as the row costs."""

    def __init__(self, chunks: Sequence[TextChunk]) -> None:
        super().__init__(itertools.chain.from_iterable(chunk.ids for chunk in chunks))
        self.chunks = tuple(chunks)

    @property
    def longest(self) -> int:
        """Tokens of the longest chunk."""
        return max(len(chunk.ids) for chunk in self.chunks)


class ChunkEncoder(TextEncoder):
    """Turns each request into :class:`Chunks`.

    The tokeniser must be a fast one, since only those tell where tokens lie in a text.

    :param spec: with `chunk_tokens`.
    :param config: of the model, as vLLM has it.
    :raises PreflightError: `chunk_tokens` are more than the model takes, or less than a chunk needs.
    """

    def __init__(self, spec: BatchInferenceSpec, tokenizer: Any, config: Any) -> None:
        vocabulary, lowers = vllm_compat.vocabulary_size(config), lowers_text(config)
        super().__init__(tokenizer, spec.special_tokens_in_text, spec.on_overlong, vocabulary, lowers)
        most, context = int(spec.chunk_tokens or 0), int(config.max_model_len)
        special = len(self._opening) + len(self._closing)
        self._room, self._overlap = most - special, spec.chunk_overlap_tokens
        if most > context:
            raise PreflightError(
                f"chunk_tokens: it is {most:,}, and the model takes {count_of(context, 'token')}; lower it."
            )
        if self._room <= self._overlap:
            raise PreflightError(
                f"chunk_tokens: it is {most:,}, which leaves no room beside "
                f"{count_of(special, 'special token')} and an overlap of {self._overlap:,}; raise it."
            )
        if not getattr(tokenizer, "is_fast", False):
            raise PreflightError(
                f"chunk_tokens: the tokenizer ({type(tokenizer).__name__}) does not tell where its tokens "
                "lie in a text; use a model with a fast one (tokenizer.json), or cut the texts before."
            )

    def longest(self, ids: Any) -> int:
        """Tokens of the longest chunk."""
        return int(ids.longest)

    def fitted(self, request: Request, ids: Any, context: int, max_tokens: Any) -> Any:
        """All of the chunks, since each fits."""
        return ids

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        """:class:`Chunks` of each request's text, or why it has none."""
        out: list[Any] = self.texts(requests)
        places = [place for place, text in enumerate(out) if isinstance(text, str)]
        made = of_each([out[place] for place in places], self._located)
        for place, found in zip(places, made, strict=True):
            text, out[place] = out[place], found
            if not isinstance(found, RowFailure):
                given = requests[place].prompt or ""
                # Where only capitals differ, a user wants to read what the row has.
                shown = given if len(given) == len(text) else text
                out[place] = self._cut(text, shown, *found)
        return out

    def _located(self, texts: list[str]) -> list[tuple[list[int], Offsets]]:
        made = self._tokenizer(
            texts,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        return list(zip(made["input_ids"], made["offset_mapping"], strict=True))

    def _cut(self, text: str, shown: str, ids: list[int], offsets: Offsets) -> Chunks | RowFailure:
        checked = self.within(ids)
        if isinstance(checked, RowFailure):
            return checked
        chunks = []
        for first, stop in spans(text, offsets, self._room, self._overlap):
            own = [*self._opening, *ids[first:stop], *self._closing]
            words, start = excerpt(text, shown, offsets, first, stop)
            chunks.append(TextChunk(words, start, len(own), own))
        if not chunks:
            return RowFailure("tokenize", "the text has no token but white space, and has no vector")
        return Chunks(chunks)


class ListEncoder(TextEncoder):
    """Of embedding lines of OpenAI batch files: token ids of one text, :class:`Chunks` of several."""

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        """Token ids of each request, or why it has none: a list fails as a whole."""
        texts = [
            [one.prompt or ""] if one.messages is None else [str(each["content"]) for each in one.messages]
            for one in requests
        ]
        alone = iter(super().encode([Request(prompt=text) for some in texts for text in some]))
        out: list[Any] = []
        for request, some in zip(requests, texts, strict=True):
            made: list[Any] = [next(alone) for _ in some]
            failed = next((one for one in made if isinstance(one, RowFailure)), None)
            if request.messages is None or failed is not None:
                out.append(failed or made[0])
            else:
                each = zip(some, made, strict=True)
                out.append(Chunks([TextChunk(text, 0, len(ids), ids) for text, ids in each]))
        return out

    def longest(self, ids: Any) -> int:
        """Tokens of the text, or of the longest one of a list."""
        return ids.longest if isinstance(ids, Chunks) else len(ids)

    def fitted(self, request: Request, ids: Any, context: int, max_tokens: Any) -> Any:
        """See the base; each text of a list is cut for itself."""
        if not isinstance(ids, Chunks):
            return super().fitted(request, ids, context, max_tokens)
        kept = []
        for chunk in ids.chunks:
            fitted = super().fitted(request, chunk.ids, context, max_tokens)
            if isinstance(fitted, RowFailure):
                return fitted
            kept.append(replace(chunk, ids=fitted, tokens=len(fitted)))
        made = Chunks(kept)
        return ids if len(made) == len(ids) else made
