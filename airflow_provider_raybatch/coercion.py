# SPDX-License-Identifier: Apache-2.0
"""Values from the text that templates leave: ``"7"`` is a number, ``"None"`` counts as not given."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from datetime import timedelta
from typing import Any

from airflow_provider_raybatch.contract.base import seconds_of, shown
from airflow_provider_raybatch.contract.failures import SpecError

_BOOLEANS = {"true": True, "false": False}
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_WHAT = {bool: "true or false", int: "a whole number", float: "a number"}

SAMPLING_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs",
                     "truncate_prompt_tokens"), int),
    **dict.fromkeys(("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
                     "repetition_penalty"), float),
    **dict.fromkeys(("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens",
                     "include_stop_str_in_output"), bool),
}  # fmt: skip
"""Types of vLLM's ``SamplingParams`` that accept one type."""

POOLING_TYPES: Mapping[str, type] = {"dimensions": int, "use_activation": bool}
"""Of vLLM's ``PoolingParams``."""

ENGINE_ARG_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_num_seqs",
                     "max_num_batched_tokens", "kv_cache_memory_bytes", "seed", "max_loras",
                     "max_lora_rank"), int),
    **dict.fromkeys(("gpu_memory_utilization", "cpu_offload_gb", "swap_space", "seconds_per_token",
                     "startup_seconds", "mm_processor_cache_gb"), float),
    **dict.fromkeys(("enforce_eager", "trust_remote_code", "enable_prefix_caching", "enable_chunked_prefill",
                     "enable_lora", "enable_expert_parallel", "disable_log_stats"), bool),
}  # fmt: skip
"""Of vLLM's engine arguments and the echo engine's, the common ones that have one type."""


_PLAIN = frozenset({str, int, float, bool, type(None)})


def listed(value: Any) -> Any:
    """`value` with a list for each generator and dictionary view in it; the caller's own stays as it is.

    A generator can be read only once, Airflow renders no text in it, and its address would change the
    serialised DAG on each parse.
    """
    try:
        return _listed(value)
    except RecursionError:
        return value


def _listed(value: Any) -> Any:
    kind = value.__class__
    if kind in _PLAIN:  # most values, and cheaper than the checks below
        return value
    if isinstance(value, dict):
        made = {name: _listed(inner) for name, inner in value.items()}
        return value if all(made[name] is inner for name, inner in value.items()) else made
    if kind is list or kind is tuple:
        items = [_listed(inner) for inner in value]
        same = all(made is inner for made, inner in zip(items, value, strict=True))
        return value if same else kind(items)
    if isinstance(value, (Iterator, KeysView, ValuesView, ItemsView)):
        return _listed(list(value))
    return value


def from_text(value: Any) -> Any:
    """The list or dictionary whose text a template has left; anything else as it is."""
    text = value.strip() if isinstance(value, str) else ""
    if text[:1] in ("[", "{", "("):
        for read in (json.loads, ast.literal_eval):
            try:
                found = read(text)
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                continue
            if isinstance(found, (list, tuple, dict)):
                return found
    return value


def given_mapping(value: Any, name: str) -> Mapping[str, Any] | None:
    """A dictionary, also as text, or ``None`` if it is not given; ``SpecError`` for anything else."""
    found = None if is_absent(value) else from_text(value)
    if found is not None and not isinstance(found, Mapping):
        raise SpecError(f"{name}: it must be a dictionary, but it is {shown(value)}.")
    return found


def is_absent(value: object) -> bool:
    """Whether a value counts as not given: Jinja renders an absent one as empty text or as ``None``."""
    return value is None or (isinstance(value, str) and value.strip() in {"", "None"})


def typed(value: Any, kind: type, name: str) -> Any:
    """`value` as a ``bool``, ``int`` or ``float``; text is converted, other types stay as they are.

    :raises SpecError: the text is not such a value, or it is a list or a dictionary.
    """
    if not isinstance(value, str):
        if isinstance(value, (Mapping, list, tuple)):
            raise SpecError(f"{name}: it must be {_WHAT[kind]}, but it is {shown(value)}.")
        return value
    text = value.strip()
    if kind is bool and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if kind is int and _WHOLE.fullmatch(text):
        return int(text.partition(".")[0])
    if kind is float:
        try:
            return float(text)
        except ValueError:
            pass
    raise SpecError(f"{name}: it must be {_WHAT[kind]}, but it is {shown(value)}.")


def typed_values(values: Any, kinds: Mapping[str, type], field: str) -> Any:
    """A copy whose texts are converted where `kinds` has their type; those not given are left out."""
    if not isinstance(values, Mapping):
        return values
    return {
        name: typed(value, kinds[name], f"{field}: {name}") if name in kinds else value
        for name, value in values.items()
        if not (name in kinds and isinstance(value, str) and is_absent(value))
    }


def with_structures(sampling: Any) -> Any:
    """With the dictionaries and lists of `structured_outputs` that were given as text."""
    if not isinstance(sampling, Mapping) or "structured_outputs" not in sampling:
        return sampling
    outputs = from_text(sampling["structured_outputs"])
    if isinstance(outputs, Mapping):
        outputs = {
            name: from_text(value) if name in ("json", "choice") else value for name, value in outputs.items()
        }
    return {**sampling, "structured_outputs": None if is_absent(outputs) else outputs}


def boolean(value: Any, name: str) -> bool:
    """A boolean, also as text; ``SpecError`` for anything else."""
    found = typed(value, bool, name)
    if not isinstance(found, bool):
        raise SpecError(f"{name}: it must be true or false, but it is {shown(value)}.")
    return found


def seconds(value: timedelta | float | str | None, name: str) -> float | None:
    """A duration in seconds.

    :raises SpecError: it is neither a ``timedelta`` nor a finite number, nor the text of one.
    """
    if is_absent(value):
        return None
    try:
        return seconds_of(value)
    except ValueError as error:
        raise SpecError(f"{name}: {error}.") from None


def positive_seconds(value: timedelta | float | str, name: str) -> float:
    """A duration of more than 0 seconds; ``SpecError`` for anything else."""
    number = seconds(value, name)
    if number is None or number <= 0:
        raise SpecError(f"{name}: it must be more than 0 seconds, but it is {value!r}.")
    return number
