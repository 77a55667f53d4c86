# SPDX-License-Identifier: Apache-2.0
"""What a model wrote, read by vLLM's own parsers: its reasoning, the calls of tools, and the answer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_raybatch.contract.arguments.tools import BROKEN_CALL, TOOL_CALLS_COLUMN
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.job.engine import vllm_compat_parsers
from airflow_provider_raybatch.job.engine.detokenize import special_texts
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.row import Completion, Response

BEGINS = ("<think>", "<thinking>", "[THINK]", "<|START_THINKING|>", "<seed:think>", "<|channel>thought")
ENDS = ("</think>", "</thinking>", "[/THINK]", "<|END_THINKING|>", "</seed:think>", "<channel|>")
"""Tags around reasoning, of many models."""


@dataclass(frozen=True)
class Split:
    """An answer, and the reasoning before it; ``None`` where there was none.

    :param tokens: of the reasoning, its tags included.
    :param problem: what the parser did wrong, as a clause after its name; empty if nothing shows.
    """

    answer: str
    reasoning: str | None = None
    tokens: int = 0
    problem: str = ""

    @property
    def extra(self) -> dict[str, Any]:
        """See :class:`~airflow_provider_raybatch.job.row.Completion`."""
        problem = {"reasoning_problem": self.problem} if self.problem else {}
        return {"reasoning": self.reasoning, "reasoning_tokens": self.tokens, **problem}


class ReasoningSplitter:
    """Splits texts with their special tokens, which may be tags; the parts have none.

    :param parser: of vLLM's; it has a state, so it works on one text at a time.
    :param request: what it takes for the request.
    :param tokenizer: a Hugging Face tokeniser.
    """

    def __init__(self, parser: Any, request: Any, tokenizer: Any) -> None:
        self._parser, self._request, self._tokenizer = parser, request, tokenizer
        self._lock = threading.Lock()
        self._end: str = getattr(parser, "reasoning_end_str", None) or ""
        self._end_id = tokenizer.get_vocab().get(self._end)
        self._special = special_texts(tokenizer)

    def added(self, response: Response, output: Any, keeps_special: bool = False) -> Response:
        """The response with its reasoning apart.

        :param output: vLLM's.
        :param keeps_special: whether special tokens stay in the parts.
        """
        prompt = output.prompt_token_ids or ()
        completions = []
        for one, generated in zip(response.completions, output.outputs, strict=True):
            is_ended = generated.finish_reason == "stop"
            found = self.split(one.text, prompt, generated.token_ids, is_ended, keeps_special)
            completions.append(replace(one, text=found.answer, extra={**one.extra, **found.extra}))
        return replace(response, completions=tuple(completions))

    def split(
        self,
        text: str,
        prompt: Sequence[int],
        ids: Sequence[int],
        is_ended: bool = True,
        keeps_special: bool = False,
    ) -> Split:
        """Split one completion.

        :param prompt: token ids that it goes on from; a closed reasoning in them means that none follows.
        :param ids: of the completion.
        :param is_ended: whether the last of `ids` ended the text and is not in it.
        """
        try:
            reasoning, answer = self._parts(text, prompt)
        except Exception as error:  # parsers are many, and the user's own may be among them
            return Split(text, problem=f"fails at the response ({plain_reason(error)})")
        if reasoning is None and (tag := _tag_in(answer)):
            return Split(answer, problem=f"leaves {tag!r} in the response, so it is not this model's")
        hidden = {} if keeps_special else self._special
        in_text = hidden.keys() & set(ids[:-1] if is_ended else ids)
        for special in [self._special[number] for number in in_text]:  # the text alone may spell them, too
            answer, reasoning = answer.replace(special, ""), reasoning and reasoning.replace(special, "")
        return Split(answer, reasoning, 0 if reasoning is None else self._tokens(answer, ids))

    def _parts(self, text: str, prompt: Sequence[int]) -> tuple[str | None, str]:
        with self._lock:
            if self._end and self._end not in text and self._parser.is_reasoning_end(list(prompt)):
                return None, text
            reasoning, answer = self._parser.extract_reasoning(text, self._request)
        return reasoning, answer or ""

    def _tokens(self, answer: str, ids: Sequence[int]) -> int:
        if self._end_id is not None and self._end_id in ids:
            return list(ids).index(self._end_id) + 1
        if not answer:
            return len(ids)
        # The reasoning ends with a phrase, and not with a token.
        return max(0, len(ids) - len(self._tokenizer.encode(answer, add_special_tokens=False)))


def _tag_in(answer: str) -> str:
    """A tag that reasoning begins with, where an answer does, or one that it ends with."""
    begins = answer.lstrip()
    found = [tag for tag in BEGINS if begins.startswith(tag)] + [tag for tag in ENDS if tag in answer]
    return found[0] if found else ""


def left_tags(parser: Any, request: Any) -> Iterator[tuple[str, str]]:
    """Pairs of tags that a parser leaves in each text with them."""
    for begin, end in zip(BEGINS, ENDS, strict=True):
        plain = f"{begin}a{end}b"
        spaced = f"{begin}\na\n{end}\n<answer>\nb\n</answer>"  # some families write it so
        answers = [parser.extract_reasoning(text, request)[1] for text in (plain, spaced)]
        if all(answer is None or begin in answer or end in answer for answer in answers):
            yield begin, end


_CALLS = "tool_calls"
"""Finish reason of a completion that calls tools, as in OpenAI's API."""
_NOTHING = frozenset({"", "null", '""'})
"""Arguments that vLLM reads as an empty object when the chat goes on."""


class ToolCaller:
    """Finds calls in texts. Its methods may be called in several threads.

    :param tokenizer: the model's.
    :raises PreflightError: vLLM has no such parser, or it does not fit the model or the tools.
    """

    def __init__(self, spec: BatchInferenceSpec, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        name = str(spec.tool_call_parser)
        try:
            self._kind = vllm_compat_parsers.tool_parser(name)
            request = vllm_compat_parsers.tool_request(tools_of(spec), spec.tool_choice)
            self._tools = request.tools
            self._request = self._kind(tokenizer, self._tools).adjust_request(request)
        except Exception as error:  # each parser raises its own
            raise PreflightError(
                f"tool_call_parser: {name!r} does not fit this model and its tools ({short(error)}); take "
                "the parser of the model's family."
            ) from error
        self.sampling: dict[str, Any] = vllm_compat_parsers.constraint_of(self._request)

    def added(self, response: Response) -> Response:
        """The response with the calls of each completion."""
        return replace(response, completions=tuple(map(self.found, response.completions)))

    def found(self, completion: Completion) -> Completion:
        """The completion with its calls, and the text beside them, as vLLM's server has them.

        A text in which the parser finds no call is the answer. One that was cut off calls nothing: its
        arguments may be incomplete, and fit nevertheless.
        """
        if completion.finish_reason == "length":
            return completion
        try:
            parser = self._kind(self._tokenizer, self._tools)
            _, text, calls = parser.parse(completion.text, self._request, enable_auto_tools=True)
        except Exception:  # each parser raises its own
            return _changed(completion, completion.text, {BROKEN_CALL: True}, completion.finish_reason)
        if not calls:
            text = completion.text if text is None else text
            return _changed(completion, text, {}, completion.finish_reason)
        made = [
            {"name": call.name, "arguments": "{}" if call.arguments.strip() in _NOTHING else call.arguments}
            for call in calls
        ]
        return _changed(completion, text or "", {TOOL_CALLS_COLUMN: made}, _CALLS)


def _changed(completion: Completion, text: str, extra: Mapping[str, Any], reason: str) -> Completion:
    return replace(completion, text=text, finish_reason=reason, extra={**completion.extra, **extra})


def tools_of(spec: BatchInferenceSpec) -> list[dict[str, Any]]:
    """The tools as parsers get them.

    Since vLLM 0.32, arguments are held to their schemas only for tools that are strict.
    """
    tools: Sequence[Mapping[str, Any]] = copy.deepcopy(spec.tools or [])
    if not spec.must_call_tools:
        return [dict(tool) for tool in tools]
    return [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in tools]
