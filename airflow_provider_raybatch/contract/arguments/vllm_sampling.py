# SPDX-License-Identifier: Apache-2.0
"""What vLLM's sampling parameters may be, known where there is no vLLM: before a Ray job starts.

The cluster's vLLM has the last word: a name that only it knows is let through, unless it is nearly a known
one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.arguments.vllm_names import SAMPLING
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.text import nearest

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""What `structured_outputs` may have one of."""
_FLAGS = ("json_object", "disable_any_whitespace", "disable_additional_properties")
_INSIDE = frozenset({*CONSTRAINTS, *_FLAGS, "whitespace_pattern", "disable_fallback"})
_CLOSE = 0.85

_STRUCTURED = "sampling={{'structured_outputs': {{'{0}': ...}}}}"
OTHER_SYSTEMS: Mapping[str, str] = {
    **{f"guided_{kind}": _STRUCTURED.format(kind) for kind in ("json", "choice", "regex", "grammar")},
    "guided_decoding": _STRUCTURED.format("json"),
    "guided_json_object": _STRUCTURED.format("json_object"),
    "guided_whitespace_pattern": _STRUCTURED.format("whitespace_pattern"),
    "guided_decoding_backend": "engine_args={'structured_outputs_config': {'backend': ...}}",
    **{kind: _STRUCTURED.format(kind) for kind in CONSTRAINTS},
    "json_schema": _STRUCTURED.format("json"),
    "choices": _STRUCTURED.format("choice"),
    "ebnf": _STRUCTURED.format("grammar"),
    **dict.fromkeys(
        ("max_completion_tokens", "max_new_tokens", "max_output_tokens", "max_length"),
        "sampling={'max_tokens': ...}",
    ),
    **dict.fromkeys(("num_return_sequences", "best_of"), "sampling={'n': ...}"),
    "stop_sequences": "sampling={'stop': [...]}",
    "random_seed": "sampling={'seed': ...}",
    "do_sample": "sampling={'temperature': 0} for the likeliest tokens",
    "extra_body": "its items in sampling",
    "response_format": "the argument response_format='json_object', or with a JSON schema",
    "chat_template_kwargs": "the argument chat_template_kwargs={...}",
    **{
        name: f"the argument chat_template_kwargs={{{name!r}: ...}}"
        for name in ("enable_thinking", "thinking", "reasoning_effort")
    },
    "thinking_budget": "sampling={'thinking_token_budget': ...}",
    "top_logprobs": "sampling={'logprobs': ...}, whose number is that of the likeliest tokens",
    **dict.fromkeys(("system", "instructions"), "the argument system_prompt"),
    **{name: f"the argument {name}" for name in ("model", "prompt", "messages", "system_prompt")},
}  # fmt: skip
"""Names of OpenAI, Transformers, SGLang and older vLLM, each with what to write instead."""


_RANGES = {
    "temperature": (0, math.inf), "top_p": (0, 1), "min_p": (0, 1), "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2), "max_tokens": (1, math.inf), "min_tokens": (0, math.inf),
    "repetition_penalty": (0, math.inf),
}  # fmt: skip
"""Least and greatest values; no version of vLLM takes others."""
_ABOVE = ("top_p", "repetition_penalty")
"""Parameters whose least value is refused, too."""


def meant(name: str) -> str | None:
    """What to write instead of `name`, after a semicolon; ``None`` where nothing is known."""
    if name in OTHER_SYSTEMS:
        return f"write {OTHER_SYSTEMS[name]}"
    close = nearest(name, SAMPLING, _CLOSE)
    return f"did you mean {close!r}?" if close else None


def check_vllm_sampling(values: Mapping[str, Any]) -> None:
    """Refuse names of other systems, misspelt names, and types that vLLM refuses in `structured_outputs`.

    :raises ValueError: one sentence, without the name of the argument.
    """
    for name, value in values.items():
        if name not in SAMPLING and (remedy := meant(name)) is not None:
            raise ValueError(f"{name}: vLLM has no such sampling parameter; {remedy}")
        least, most = _RANGES.get(name, (-math.inf, math.inf))
        is_too_small = name in _ABOVE and value == least
        if isinstance(value, (int, float)) and (is_too_small or not least <= value <= most):
            wanted = f"{'above' if name in _ABOVE else 'at least'} {least}"
            wanted += "" if most == math.inf else f" and at most {most}"
            raise ValueError(f"{name}: it must be {wanted}, but it is {value}")
    structured = values.get("structured_outputs")
    if structured is None:
        return
    try:
        _check_structured(structured)
    except ValueError as error:
        raise ValueError(f"structured_outputs: {error}") from None


def _check_structured(structured: Any) -> None:
    if not isinstance(structured, Mapping):
        raise ValueError(
            f"it must be a dictionary such as {{'choice': ['yes', 'no']}}, but it is {shown(structured)}"
        )
    given = {name: value for name, value in structured.items() if value is not None}
    for name in given.keys() - _INSIDE:
        if close := nearest(name, _INSIDE):
            raise ValueError(f"there is no {name!r}; did you mean {close!r}?")
    kinds = [name for name in CONSTRAINTS if name in given]
    if len(kinds) > 1:
        raise ValueError(f"{' and '.join(kinds)} are given together; keep one of them")
    if not kinds and _INSIDE.issuperset(given):
        raise ValueError(f"no constraint is given; give one of {', '.join(CONSTRAINTS)}")
    for name, value in given.items():
        if requirement := _refused(name, value):
            raise ValueError(f"{name}: it must be {requirement}, but it is {shown(value)}")


def _refused(name: str, value: Any) -> str | None:
    """What a value must be, if it is not."""
    if name == "choice":
        texts = isinstance(value, (list, tuple)) and all(isinstance(one, str) and one for one in value)
        return None if texts and value else "a list of at least one text, none of them empty"
    if name in _FLAGS:
        return None if isinstance(value, bool) else "true or false"
    if name in _INSIDE - {"json"}:  # the schema is checked for all engines
        return None if isinstance(value, str) and value else "a text that is not empty"
    return None
