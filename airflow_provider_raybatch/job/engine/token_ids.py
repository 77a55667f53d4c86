# SPDX-License-Identifier: Apache-2.0
"""Token ids that a model lacks, though its tokenizer may have them.

vLLM refuses an id only if the tokenizer lacks it, too; any other id ends the engine with all its requests.
Tokens that were added to a tokenizer have such ids if the model was not resized for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.row import RowFailure

_NAMES = ("logit_bias", "allowed_token_ids", "stop_token_ids")


def surplus_tokens(tokenizer: Any, size: int) -> list[str]:
    """The tokenizer's tokens whose ids a vocabulary of this size lacks, in the order of their ids."""
    ids = {number: text for text, number in tokenizer.get_vocab().items() if number >= size}
    return [ids[number] for number in sorted(ids)]


def absent_bos(tokenizer: Any, chats: Sequence[Sequence[int]]) -> str:
    """The token that the tokenizer puts before each text, if no chat begins with it; else empty.

    vLLM puts none before a chat, so the chat template must: without it, Gemma 3 270M wrote only white space
    where JSON was asked for.

    :param chats: token ids.
    """
    first = tokenizer.encode("x")[:1]
    if first != [tokenizer.bos_token_id] or not chats or any(list(ids[:1]) == first for ids in chats):
        return ""
    return str(tokenizer.bos_token)


def within(ids: list[int], tokenizer: Any, size: int) -> list[int] | RowFailure:
    """The token ids of a prompt, or its failure if a vocabulary of this size lacks one."""
    most = max(ids, default=0)
    if most < size:
        return ids
    token = None
    with contextlib.suppress(Exception):  # the tokenizer may lack the id, too, and raise anything
        token = tokenizer.convert_ids_to_tokens(most)
    return RowFailure(
        "tokenize",
        f"the prompt has the token {token!r} (id {most}), and the model's vocabulary has only ids from 0 to "
        f"{size - 1}; take it out of the row, or use the tokenizer that the model was trained with",
    )


def check_token_ids(params: Any, tokenizer: Any, size: int) -> None:
    """Check vLLM's sampling parameters.

    :raises PreflightError: they have an id that a vocabulary of this size lacks, or a grammar that the model
        can't end.
    """
    check_end(params, tokenizer)
    for name, ids in _given(params, tokenizer):
        unknown = [one for one in ids if not 0 <= one < size]
        if unknown:
            raise PreflightError(
                f"sampling: {name} has the token id {unknown[0]}, and the model has ids from 0 to {size - 1}."
            )


def check_end(params: Any, tokenizer: Any) -> None:
    """Check that a response under a grammar can end.

    :param params: vLLM's.
    :raises PreflightError: the tokenizer has no token for that.
    """
    if getattr(params, "structured_outputs", None) and not vllm_compat.ends_grammars(tokenizer):
        raise PreflightError(
            "model: its tokenizer has no eos_token, and a response under a grammar (structured_outputs, "
            "tools) can't end without it; set it in tokenizer_config.json."
        )


def _given(params: Any, tokenizer: Any) -> Iterator[tuple[str, Sequence[int]]]:
    for name in _NAMES:
        yield name, list(getattr(params, name, None) or ())
    for word in getattr(params, "bad_words", None) or ():
        for text in (word.lstrip(), f" {word.lstrip()}"):  # as vLLM reads them
            yield "bad_words", tokenizer.encode(text, add_special_tokens=False)
