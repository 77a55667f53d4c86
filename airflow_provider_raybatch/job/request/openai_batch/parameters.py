# SPDX-License-Identifier: Apache-2.0
"""The parameters that a body may have, each with the values that it takes. All others are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.job.request.json_schema import check_schema
from airflow_provider_raybatch.job.row import RenderError

MISSING = "missing_required_parameter"
UNSUPPORTED = "unsupported_parameter"
WRONG_VALUE = "invalid_value"


class LineError(RenderError):
    """A line that makes no request.

    :param param: the field that is wrong; inside of lists, with its place (``messages.0.role``).
    :param code: OpenAI's, as far as it has one.
    """

    def __init__(self, param: str, why: str, code: str = WRONG_VALUE) -> None:
        super().__init__(f"{param}: {why}")
        self.param = param
        self.code = code


def wrong(param: str, must_be: str, value: Any) -> LineError:
    """The error of a value that is not what it must be."""
    return LineError(param, f"it must be {must_be}, but it is {shown(value)}")


Check: TypeAlias = Callable[[str, Any], Any]
"""Takes name and value; returns the value in vLLM's form, or raises :class:`LineError`."""

MOST_LOGPROBS = 20
_MOST_STOPS = 16
_LARGEST = 2**63 - 1


def number(low: float, high: float) -> Check:
    """A finite number of a range."""

    def check(name: str, value: Any) -> Any:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
        if not fits:
            raise wrong(name, f"a number from {low:g} to {high:g}", value)
        return value

    return check


def whole(low: int, high: int = _LARGEST) -> Check:
    """A whole number of a range; 8.0 is one, too."""

    def check(name: str, value: Any) -> int:
        is_whole = type(value) is int or (type(value) is float and value.is_integer())
        if not (is_whole and low <= value <= high):
            to = f"from {low} to {high}" if high < _LARGEST else f"of at least {low}"
            raise wrong(name, f"a whole number {to if low > -_LARGEST else 'of 64 bits'}", value)
        return int(value)

    return check


def only(*values: Any) -> Check:
    """One of a few values."""

    def check(name: str, value: Any) -> Any:
        if not any(type(value) is type(one) and value == one for one in values):
            raise LineError(
                name, f"a batch takes {' or '.join(map(repr, values))} alone, not {value!r:.100}", UNSUPPORTED
            )
        return value

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(name, "true or false", value)
    return value


def _stops(name: str, value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else value
    are_texts = isinstance(found, list) and all(isinstance(one, str) and one for one in found)
    if not are_texts or len(found) > _MOST_STOPS:
        raise wrong(name, f"a text or a list of at most {_MOST_STOPS} texts, none of them empty", value)
    return found


def _biases(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(name, "an object of token ids, each with a number from -100 to 100", value)
    for token, bias in value.items():
        if not (token.isascii() and token.isdecimal()):
            raise LineError(f"{name}.{token[:40]}", "the key is not a token id")
        number(-100, 100)(f"{name}.{token}", bias)
    return value


def _ignored(name: str, value: Any) -> Any:
    return value


_SAMPLING: Mapping[str, Check] = {
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "seed": whole(-_LARGEST - 1),
    "n": whole(1, 128),
    "max_tokens": whole(1),
    "stop": _stops,
    "logit_bias": _biases,
    # VLLM's own, as its server takes them.
    "top_k": whole(-1),
    "min_p": number(0, 1),
    "repetition_penalty": number(0.01, 10),
    "min_tokens": whole(0),
    "ignore_eos": _flag,
    "skip_special_tokens": _flag,
    "include_stop_str_in_output": _flag,
}
"""Those that a sampling parameter of the same name takes."""
_OF_ALL: Mapping[str, Check] = {
    "user": _ignored,
    "metadata": _ignored,
    "store": _ignored,
    "service_tier": _ignored,
    "safety_identifier": _ignored,
    "prompt_cache_key": _ignored,
    "prompt_cache_retention": _ignored,
    "stream": only(False),
}
"""Without an effect on the answer."""
_CHAT: Mapping[str, Check] = {
    **_SAMPLING,
    **_OF_ALL,
    "max_completion_tokens": whole(1),
    "logprobs": _flag,
    "top_logprobs": whole(0, MOST_LOGPROBS),
    "modalities": only(["text"]),
}
_COMPLETIONS: Mapping[str, Check] = {
    **_SAMPLING,
    **_OF_ALL,
    "logprobs": whole(0, MOST_LOGPROBS),
    "echo": only(False),
    "best_of": whole(1, 128),
}


def sampling_of_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters of a chat's body.

    :param body: without what is read elsewhere.
    :raises LineError: one is unknown, or has a wrong value.
    """
    given = _checked(body, _CHAT)
    sampling = {name: value for name, value in given.items() if name in _SAMPLING}
    if (most := given.get("max_completion_tokens")) is not None:
        sampling["max_tokens"] = most
    if given.get("logprobs"):
        sampling["logprobs"] = given.get("top_logprobs", 0)
    elif given.get("top_logprobs"):
        raise LineError("top_logprobs", "it has no effect without logprobs; set that to true")
    return _without_zero_top_p(sampling)


def sampling_of_completion(body: Mapping[str, Any], of_job: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a raw prompt, which generates 16 tokens where neither line nor job says how many."""
    given = _checked(body, _COMPLETIONS)
    sampling = {name: value for name, value in given.items() if name in _SAMPLING}
    if "logprobs" in given:
        sampling["logprobs"] = given["logprobs"]
    if given.get("best_of", given.get("n", 1)) != given.get("n", 1):
        raise LineError("best_of", "it must equal n: no engine picks the best of more", UNSUPPORTED)
    if "max_tokens" not in sampling and of_job.get("max_tokens") is None:
        sampling["max_tokens"] = 16
    return _without_zero_top_p(sampling)


def response_format(value: Any) -> dict[str, Any]:
    """The sampling parameters that a body's response format stands for.

    :raises LineError: it has none of OpenAI's forms, or no JSON schema.
    """
    name = "response_format"
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"structured_outputs": {"json_object": True}}
    if kind != "json_schema":
        raise wrong(f"{name}.type", "'text', 'json_object' or 'json_schema'", kind)
    inner = value.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise wrong(f"{name}.json_schema.schema", "a JSON schema, an object", schema)
    structured = {"json": schema}
    try:
        check_schema(structured)
    except (ValueError, RecursionError) as error:
        raise LineError(f"{name}.json_schema.schema", str(error)) from None
    return {"structured_outputs": structured}


def _checked(body: Mapping[str, Any], known: Mapping[str, Check]) -> dict[str, Any]:
    """The parameters that are given; null counts as not given, as OpenAI's clients write it."""
    given = {}
    for name, value in body.items():
        if value is None:
            continue
        if name not in known:
            raise LineError(name[:100], "a batch takes no such parameter; remove it", UNSUPPORTED)
        given[name] = known[name](name, value)
    return given


def _without_zero_top_p(sampling: dict[str, Any]) -> dict[str, Any]:
    """OpenAI takes 0, which leaves the likeliest token; vLLM wants more than that."""
    if sampling.get("top_p") == 0:
        sampling = {**sampling, "top_p": 1.0, "top_k": 1}
    return sampling
