# SPDX-License-Identifier: Apache-2.0
"""Values of one request that vLLM takes: sampling parameters in its types, and token ids that the model has.

JSON and table columns write some values in another way: token ids as text; a struct has the fields of all
rows, with nulls; a map is a list of pairs; pandas has floats where a column of whole numbers lacks some.

vLLM refuses a token id only if the tokenizer lacks it, too; any other id ends the engine with all requests.
Tokens that were added to a tokenizer have such ids if the model was not resized for them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine import vllm_compat_parsers
from airflow_provider_raybatch.job.row import RowFailure

_OBJECTS = frozenset({"structured_outputs", "repetition_detection"})
_WHOLE = re.compile(r"\bint\b(?!.*\bfloat\b)")
"""Types whose numbers are whole, as Python writes them."""


def tidied(values: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The same parameters, in vLLM's types where the value leaves no doubt.

    :param types: of vLLM's parameters, by name.
    :raises ValueError: a key of `logit_bias` is not a token id.
    """
    made = {}
    for name, value in values.items():
        if name == "logit_bias":
            value = _by_token(value)
        elif name in _OBJECTS and isinstance(value, Mapping) and value:
            value = {key: inner for key, inner in value.items() if inner is not None} or None
        elif isinstance(value, list):
            value = [inner for inner in value if inner is not None]
        if _WHOLE.search(str(types.get(name))):
            value = list(map(whole_number, value)) if isinstance(value, list) else whole_number(value)
        if value is not None or name == "max_tokens":  # which has no limit then
            made[name] = value
    return made


def whole_number(value: Any) -> Any:
    """An int for a float without a fraction; any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _token(value: Any) -> int:
    if isinstance(value, bool) or (int(value) != value and not isinstance(value, str)):
        raise ValueError
    return int(value)


def _by_token(biases: Any) -> Any:
    if biases is None:
        return None
    try:
        return {_token(token): bias for token, bias in dict(biases).items() if bias is not None}
    except (TypeError, ValueError):
        raise ValueError(f"logit_bias: {shown(biases)} has a key that is not a token id; give ids") from None


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
    if getattr(params, "structured_outputs", None) and not vllm_compat_parsers.ends_grammars(tokenizer):
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
