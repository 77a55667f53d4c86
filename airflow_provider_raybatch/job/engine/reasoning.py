# SPDX-License-Identifier: Apache-2.0
"""Splits what a model wrote into its reasoning and its answer, with one of vLLM's reasoning parsers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.job.engine.detokenize import special_texts
from airflow_provider_raybatch.job.row import Response

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
