# SPDX-License-Identifier: Apache-2.0
"""Tokenisers of pooling models, on batches: whole texts and chats, texts in chunks, and lists of texts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.base import too_long
from airflow_provider_raybatch.job.engine.chat import ChatEncoder, RenderChat, of_each, template_of
from airflow_provider_raybatch.job.row import Request, Response, RowFailure

CHUNKS = "chunks"
"""What a response has in `extra` beside a vector for each chunk."""
Offsets: TypeAlias = Sequence[tuple[int, int]]
"""For each token of a text, where its characters begin and end. Tokens of one character have the same."""


@dataclass(frozen=True)
class TextChunk:
    """One chunk of a text.

    :param start: where `text` begins in the whole, in characters.
    :param tokens: as many as the model gets.
    :param ids: those, special tokens included; an echo has none.
    """

    text: str
    start: int
    tokens: int
    ids: list[int] = field(default_factory=list)

    @property
    def shown(self) -> dict[str, Any]:
        """What its row in the dataset is made of."""
        return {"text": self.text, "start": self.start, "tokens": self.tokens}


def spans(text: str, offsets: Offsets, room: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Runs of at most `room` tokens, as first and one past the last; white space alone is left out.

    A run ends before a word that begins in its second half, if one does; else between two characters.

    :param overlap: the next run begins at most so many tokens before the end of this one, with a word if one
        begins there.
    """
    first, count = 0, len(offsets)
    while first < count:
        most = first + room
        stop = count
        if most < count:
            least = first + max(overlap, room // 2)
            stop = _border(text, offsets, range(most, least, -1)) or most
        if excerpt(text, text, offsets, first, stop)[0]:
            yield first, stop
        if stop == count:
            return
        first = _border(text, offsets, range(stop - overlap, stop + 1)) or stop


def _border(text: str, offsets: Offsets, places: Sequence[int]) -> int | None:
    """The first of some places before which no word goes on, or no character; ``None`` if there is none."""
    words = (place for place in places if _begins_word(text, offsets[place][0]))
    characters = (place for place in places if offsets[place][0] >= offsets[place - 1][1])
    return next(words, None) or next(characters, None)


def _begins_word(text: str, start: int) -> bool:
    return text[start - 1 : start].isspace() or text[start : start + 1].isspace()


def excerpt(text: str, shown: str, offsets: Offsets, first: int, stop: int) -> tuple[str, int]:
    """The text of a run of tokens without white space around it, and where it begins.

    Up to the next token: a tokenizer leaves characters out, such as accents, and they have no token.

    :param shown: the text that it is taken from; as long as `text`.
    """
    start = offsets[first][0] if first else 0
    end = max(offsets[stop - 1][1], offsets[stop][0]) if stop < len(offsets) else len(text)
    whole = shown[start:end]
    return whole.strip(), start + len(whole) - len(whole.lstrip())


def failure_of(number: int, chunk: TextChunk, failure: RowFailure, tokens: int = 0) -> RowFailure:
    """The failure of a row whose chunk of this number failed: no part of a row is delivered.

    :param tokens: that were paid for.
    """
    reason = f"chunk {number} (from character {chunk.start:,}): {failure.reason}"
    return RowFailure(failure.step, reason, tokens)


def response_of(
    chunks: Sequence[TextChunk], vectors: Sequence[npt.NDArray[np.float32]], cached: int = 0
) -> Response:
    """The response of a row, with a row of `pooled` for each chunk."""
    return Response(
        input_tokens=sum(chunk.tokens for chunk in chunks),
        cached_tokens=cached,
        pooled=np.stack(vectors),
        extra={CHUNKS: [chunk.shown for chunk in chunks]},
    )


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
