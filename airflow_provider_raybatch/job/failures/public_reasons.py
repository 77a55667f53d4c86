# SPDX-License-Identifier: Apache-2.0
"""What a job with ``report_samples=0`` says of failures, in words that no row can choose.

Reasons of rows quote values, keys, responses and texts of foreign exceptions. So this lists what may be said,
rather than what may not. Dead letters and error files have the whole reason.

Exceptions are made public before they reach a log, an event, a file or Ray: what this package raises brings a
public sentence along. The text of any other one may quote rows (Arrow shows the value that it can't convert),
so only its class is said, and where it was raised.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from airflow_provider_raybatch.contract.failures import PreflightError, RaybatchError
from airflow_provider_raybatch.contract.text import without_queries
from airflow_provider_raybatch.job.failures.diagnosis import chain, diagnose, own_error
from airflow_provider_raybatch.job.row import RowFailure

_COUNT = r"\d+(?:,\d{3})*"
_SAYS: tuple[tuple[str, str | None], ...] = (
    ("the line is not JSON", None),
    ("the line is JSON, but (?:a list|a string|a boolean|null|a number) instead of an object", None),
    ("an object in the line has the key .* twice", "an object in the line has a key twice"),
    ("the row is not CSV", None),
    ("the row is not UTF-8 text", None),
    ("the row is the header line once more", None),
    (f"the row has {_COUNT} fields?, the header has {_COUNT}", None),
    ("column .* has a value that can't be read", "a column has a value that can't be read"),
    ("the request is not JSON", None),
    ("sampling of the row: ", "the sampling of the row is refused"),
    (".* is a string, but no JSON (?:object|list of messages) ", "a text of the row is not JSON"),
    (".*, not an object of sampling parameters$", "the sampling of the row is not an object of parameters"),
    (".* has no list of messages$", "the row has no list of messages"),
    (".* has no message in it$", "the messages of the row are an empty list"),
    (".* has a message without a role or a content$", "a message has no role or no content"),
    (".* has a message from ", "a message is from another than the roles"),
    ("a message's content is ", "a message's content is neither a text nor a list of text parts"),
    ("a message has a content part of type ", "a message has a content part that can't be used"),
    ("a message has an image, and ", "a message has an image, which this job does not take"),
    (
        f"the chat has {_COUNT} parts? of type 'image', and the columns in images have {_COUNT} images?",
        None,
    ),
    ("the chat has no message of the role 'user' for the images", None),
    ("column .* names the adapter ", "the row names an adapter that is not among adapters"),
    (".* is empty, and a pooling model needs a text$", "a text is empty, and a pooling model needs one"),
    (".* has no list of texts; ", "the documents of the row are not a list of texts"),
    ("the row has no column ", "the row has no such column as the prompt names"),
    ("column .* is null", "a column that the prompt names is null"),
    ("column .* is empty", "a column that the prompt names is empty"),
    (
        f"the prompt has {_COUNT} tokens? and max_model_len is {_COUNT}, which leaves no room for a response",
        None,
    ),
    (f"the (?:text|pair of query and document) has {_COUNT} tokens? and the model takes {_COUNT}", None),
    ("the query leaves .* no room for a document", "the query leaves no room for a document"),
    ("the text has no token but white space", None),
    ("the row's text has the special token ", "the row's text has a special token of the model"),
    ("the prompt has the token ", "the prompt has a token that the model's vocabulary lacks"),
    (f"the row has {_COUNT} images?, and the model can't be given any", None),
    (f"the row has {_COUNT} images?, and the engine takes {_COUNT} a request", None),
    (f"the engine got {_COUNT} images? for a request with {_COUNT} placeholders?", None),
    ("the (?:chat|prompt) has .* placeholders? ", "the text has not one placeholder for each image"),
    ("the echo takes no images", None),
    ("the engine's process dies of this row, and did so with this row alone in it", None),
    (
        "the process of the engine and of prompt_function ",
        "the process of the engine and of prompt_function dies of this row, alone in it",
    ),
    ("the engine ended the request with finish_reason '(?:error|abort)'", None),
    ("the engine gave no (?:vector for each chunk|vector|probabilities|score)", None),
    ("the echo engine fails requests that contain ", "the echo engine fails such requests"),
    ("vLLM ended the request without a result", None),
    ("the server answered without a completion", None),
    ("the response is not JSON(?:, cut off by max_tokens)?", None),
    ("the response does not fit the JSON schema", None),
    ("the response does not fit the columns of response_format", None),
    ("the response is not one of the choices", None),
    ("the tool_call_parser .* can't read the response", "the tool_call_parser can't read the response"),
    ("the response calls no tool, which tool_choice asks for", None),
    ("the response calls the tool ", "the response calls a tool that is not among tools"),
    ("the arguments of .* are not JSON", "the arguments of a tool call are not JSON"),
    ("the arguments of .* do not fit its schema", "the arguments of a tool call do not fit its schema"),
    ("the response has reasoning and no answer after it", None),
    (f"the response was cut off after {_COUNT} tokens?", None),
    ("the function returned a column ", "the function returned a column that can't be used"),
    ("the function returned ", "the function returned what is not a dictionary of columns"),
    (".* is not below image_roots", "an image is not below image_roots"),
    (".* is on a host that is not allowed; ", "an image is on a host that is not in image_hosts"),
    (".* has more than the .* of max_image_bytes; ", "an image has more than max_image_bytes"),
    (".*the image has more than .* pixels; ", "an image has more than max_image_pixels"),
    (".*the image has the mode ", "an image has more than 8 bits a channel"),
    (".*the image is damaged or cut off ", "an image is damaged or cut off"),
    (".* did not arrive within the .* s of image_timeout; ", "an image did not arrive within image_timeout"),
    (".* can't be read, there is no such object; ", "an image is not where its reference says"),
)
"""Beginnings of reasons, and what is said of them; ``None`` for what has matched: fixed words and counts."""
_KNOWN = tuple((re.compile(begins, re.DOTALL), words) for begins, words in _SAYS)
_PLACE = re.compile(rf"(?:chunk {_COUNT} \(from character {_COUNT}\)|document {_COUNT}): ")
_FIELD = re.compile(r"([a-z_]{1,30})(?:\.[^:]*)?: ")
_FIELDS = frozenset({
    "custom_id", "method", "url", "body", "model", "messages", "prompt", "input", "temperature", "top_p",
    "presence_penalty", "frequency_penalty", "seed", "n", "max_tokens", "max_completion_tokens", "stop",
    "logit_bias", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice", "stream", "echo",
    "best_of", "modalities", "dimensions", "encoding_format", "top_k", "min_p", "min_tokens",
    "repetition_penalty", "ignore_eos",
})  # fmt: skip
"""Of the lines of OpenAI batch files; a key that only a row has is not said."""
_CLASS = re.compile(r"(\w{1,60}): ")
_CLASSES = frozenset({
    *(name for name, kind in vars(builtins).items() if isinstance(kind, type) and name.endswith("Error")),
    "TemplateError", "UndefinedError", "SecurityError", "ValidationError", "VLLMValidationError",
    "EngineGenerateError", "JSONDecodeError",
})  # fmt: skip
"""Exceptions of Python, Jinja, pydantic and vLLM, whose names begin the reasons of rows."""
_OF_STEP = {
    "read": "the row can't be read",
    "template": "the row makes no request",
    "media": "an image of the row can't be used",
    "tokenize": "the row makes no prompt that the model takes",
    "engine": "the engine made no response",
    "parse": "the response is not what was asked for",
    "length": "the response was cut off",
    "postprocess": "no columns could be made of the response",
    "cancelled": "the batch was cancelled before the line had an answer",
    "expired": "the completion window was over before the line had an answer",
    "limit_reached": "the batch had used up a limit before the line had an answer",
}
_OTHER = "the dead letter has the reason"


def public_reason(failure: RowFailure) -> str:
    """Why a row failed, without what the row or its response holds."""
    reason = failure.reason
    if (place := _PLACE.match(reason)) is not None:
        reason = reason[place.end() :]
    for begins, words in _KNOWN:
        if (found := begins.match(reason)) is not None:
            return words or found[0]
    if (field := _FIELD.match(reason)) is not None and field[1] in _FIELDS:
        return f"the line's {field[1]} is refused"
    general = _OF_STEP.get(failure.step.rpartition(".")[2], _OTHER)  # `judge.parse` in one of several steps
    if (kind := _CLASS.match(reason)) is not None and kind[1] in _CLASSES:
        return f"{general} ({kind[1]})"
    return general


def refusal_by(begins: str, failure: RowFailure) -> PreflightError:
    """The error of a job whose first rows all fail, by the reason of one of them."""
    return PreflightError(f"{begins}: {failure.reason}.", public=f"{begins}: {public_reason(failure)}.")


_MOST_SHOWN = 3
_LONGEST_REASON = 100
_SENTENCE = re.compile(r"(?<=[.!?])\s|\n")
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+(?:[.,]\d+)*")


def counted(failures: Iterable[tuple[int, RowFailure]], *, shows_rows: bool) -> str:
    """How many rows failed by step and reason, the most frequent first, each with one row as an example.

    Reasons that differ only in numbers and quoted values count as one.

    :param failures: each with the row's position in the input.
    :param shows_rows: whether a reason may quote its row.
    """
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for ordinal, failure in failures:
        reason = failure.reason if shows_rows else public_reason(failure)
        kind = failure.step, kind_of_reason(reason)
        counts[kind] += 1
        examples.setdefault(kind, f"row {ordinal}: {_short(reason)}")
    shown = counts.most_common(_MOST_SHOWN)
    told = [f"{count:,} in step {kind[0]!r} ({examples[kind]})" for kind, count in shown]
    others = counts.total() - sum(count for _, count in shown)
    return ", ".join([*told, *([f"{others:,} for other reasons"] if others else [])])


def main_reasons(failures: Iterable[RowFailure], *, shows_rows: bool) -> dict[str, tuple[int, str]]:
    """By step how many rows failed for its most frequent reason, and the first sentence of that.

    :param shows_rows: whether a reason may quote its row.
    """
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for failure in failures:
        reason = failure.reason if shows_rows else public_reason(failure)
        sentence = _SENTENCE.split(reason.strip(), maxsplit=1)[0]
        kind = failure.step, kind_of_reason(sentence)
        counts[kind] += 1
        examples.setdefault(kind, _short(sentence))
    found: dict[str, tuple[int, str]] = {}
    for kind, count in counts.most_common():
        found.setdefault(kind[0], (count, examples[kind]))
    return found


def kind_of_reason(reason: str) -> str:
    """The same for reasons that differ only in numbers and quoted values."""
    return _VALUE.sub("#", reason)


def _short(reason: str) -> str:
    flat = " ".join(without_queries(reason).split()).rstrip(".")
    return flat if len(flat) <= _LONGEST_REASON else flat[: _LONGEST_REASON - 3] + "..."


T = TypeVar("T")


def public_error(error: Exception) -> RaybatchError:
    """The error with its public sentence alone, raised at the same place.

    :returns: of the same class, if it is one of this package.
    """
    if (own := own_error(error)) is not None:
        made = own.reworded(own.public)
    else:
        failure_class, sentence = diagnose(error, shows_rows=False)
        made = RaybatchError(sentence, failure_class)
    return made.with_traceback(error.__traceback__)


@contextmanager
def guarded(shows_rows: bool) -> Iterator[None]:
    """Let only public errors out of a process: Ray keeps and shows the texts of those that it carries."""
    try:
        yield
    except Exception as error:
        if shows_rows:
            raise
        raise public_error(error) from None


def guarded_task(function: Callable[..., T], shows_rows: bool) -> Callable[..., T]:
    """`function`, guarded where it runs."""
    if shows_rows:
        return function

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with guarded(shows_rows):
            made = function(*arguments, **named)
            return _guarded_values(made) if inspect.isgenerator(made) else made

    return call


def _guarded_values(made: Iterator[Any]) -> Iterator[Any]:
    with guarded(shows_rows=False):
        yield from made


def traceback_of(error: BaseException, shows_rows: bool) -> str:
    """As Python prints it; without the texts of exceptions where rows are not shown."""
    if shows_rows:
        return "".join(traceback.format_exception(error))
    frames = ("".join([*traceback.format_tb(one.__traceback__), type(one).__name__]) for one in chain(error))
    return "\n\n".join(frames)
