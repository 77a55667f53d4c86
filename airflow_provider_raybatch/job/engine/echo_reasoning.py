# SPDX-License-Identifier: Apache-2.0
"""A reasoning before an echo's answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.row import Completion


@dataclass(frozen=True)
class Reasoning:
    """What comes before an answer.

    :param room: words that are left for the answer; ``None`` for any number.
    """

    words: tuple[str, ...]
    room: int | None

    @classmethod
    def about(cls, prompt_words: int, budget: int | None, most: int | None) -> Reasoning:
        """The reasoning about a prompt.

        :param budget: the most words that it may have.
        :param most: the most words that it and the answer may have.
        """
        words = f"The prompt has {count_of(prompt_words, 'word')}.".split()[:budget]
        return cls(tuple(words[:most]), None if most is None else most - len(words))

    def alone(self, finish_reason: str) -> Completion:
        """A completion that ended before its answer began."""
        return Completion("", finish_reason, len(self.words), extra=self._extra)

    def before(self, answer: Completion) -> Completion:
        """The completion with its reasoning."""
        tokens = answer.output_tokens + len(self.words)
        return replace(answer, output_tokens=tokens, extra={**answer.extra, **self._extra})

    @property
    def _extra(self) -> dict[str, str | int]:
        return {"reasoning": " ".join(self.words), "reasoning_tokens": len(self.words)}
