# SPDX-License-Identifier: Apache-2.0
"""Tokeniser of embedding lines of OpenAI batch files: a line may have a list of texts, each with a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.job.engine.chunk_encoder import Chunks
from airflow_provider_raybatch.job.engine.text_chunks import TextChunk
from airflow_provider_raybatch.job.engine.text_encoder import TextEncoder
from airflow_provider_raybatch.job.row import Request, RowFailure


class ListEncoder(TextEncoder):
    """Turns a request of one text into token ids, and one of several messages into :class:`Chunks`."""

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        """Token ids of each request, or why it has none: a list fails as a whole."""
        texts = [[one.prompt or ""] if one.messages is None else texts_of_list(one) for one in requests]
        alone = iter(super().encode([Request(prompt=text) for some in texts for text in some]))
        out: list[Any] = []
        for request, some in zip(requests, texts, strict=True):
            made: list[Any] = [next(alone) for _ in some]
            failed = next((one for one in made if isinstance(one, RowFailure)), None)
            if request.messages is None or failed is not None:
                out.append(failed or made[0])
            else:
                each = zip(some, made, strict=True)
                out.append(Chunks([_chunk(text, ids) for text, ids in each]))
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


def _chunk(text: str, ids: list[int]) -> TextChunk:
    return TextChunk(text, 0, len(ids), ids)


def texts_of_list(request: Request) -> list[str]:
    """The texts of a line with a list of them."""
    return [str(message["content"]) for message in request.messages or ()]
