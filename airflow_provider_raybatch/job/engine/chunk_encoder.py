# SPDX-License-Identifier: Apache-2.0
"""Tokenisers of rows that get several vectors: of a long text in chunks, or of a list of texts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.chat import of_each
from airflow_provider_raybatch.job.engine.text_chunks import Offsets, TextChunk, excerpt, spans
from airflow_provider_raybatch.job.engine.text_encoder import TextEncoder, lowers_text
from airflow_provider_raybatch.job.row import Request, RowFailure


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
