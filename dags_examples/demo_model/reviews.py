# SPDX-License-Identifier: Apache-2.0
"""Conversations that teach the demo model the example DAGs' requests: label, repair, judge one, judge two.

The prompts are those of the DAGs, and a test compares them. The right answers are known: documents have their
labels, damaged answers their originals, and sums can be computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.workflows.prompts import (
    FIRST,
    SECOND,
    TIE,
    Rubric,
    pairwise_prompt,
    repair_messages,
)

from .companies import Split, pick
from .corpus import SUM_PROMPTS, Conversation, facts, question_form, sum_is_held_out
from .documents import TOPICS, document

__all__ = ["REVIEWS", "TOPICS", "Conversation", "Repair", "Review", "reviews"]

Review = Literal["label", "repair", "score", "pair"]
REVIEWS: tuple[Review, ...] = get_args(Review)

LABEL_PROMPT = "Rate the quality of this text from 1 to 5, and name its topic.\n\n{row.text}"
SYSTEMS = (
    "You write short quizzes. Answer in JSON.",
    "You write questions and answers for a school. Answer in JSON.",
)
QUESTION_PROMPT = "Write one question and answer about: {row.topic}"
_TEXT = {"type": "string", "minLength": 1, "maxLength": 300}
SCHEMA = {
    "type": "object",
    "properties": {"question": _TEXT, "answer": _TEXT},
    "required": ["question", "answer"],
    "additionalProperties": False,
}
RUBRIC = Rubric(
    "Is the answer right, and does it answer the question?",
    {1: "wrong, or no answer", 3: "partly right", 5: "right"},
    max_reason=100,
)
REASONS = {
    1: "The answer is not about the question.",
    3: "The answer is a part of the right one.",
    5: "The answer is right.",
}
COMPLAINTS = (
    "the response is not JSON (Expecting value: line 1 column 1 (char 0))",
    "the response is not JSON (Unterminated string starting at: line 1 column 15 (char 14))",
    "the response is not JSON (Expecting ',' delimiter: line 1 column 40 (char 39))",
    "the response lacks 'answer'",
    "the response lacks 'question'",
)


@dataclass(frozen=True)
class Repair(Conversation):
    """A request, the answer that was refused, and the error."""

    refused: str = ""
    complaint: str = ""

    def messages(self) -> list[dict[str, str]]:
        """See :class:`Conversation`."""
        row = {"topic": self.prompt, "response": self.refused, "reason": self.complaint}
        asked = repair_messages(QUESTION_PROMPT, SCHEMA, system_prompt=self.system)
        return [{**one, "content": RowTemplate(one["content"]).render(row)} for one in asked]


def _of(skill: Review, template: str, row: dict[str, str], answer: str) -> Conversation:
    return Conversation(skill, None, RowTemplate(template).render(row), answer)


def _held_out(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[0] % 8 == 0


def _label(rng: Random, split: Split) -> Conversation:
    drawn = document(rng, split)
    labels = {"quality": drawn.quality, "topic": drawn.topic}
    return _of("label", LABEL_PROMPT, {"text": drawn.text}, json.dumps(labels))


def _repair(rng: Random, split: Split) -> Conversation:
    while True:
        topic = pick(rng, tuple(facts()))
        question, answer = pick(rng, facts()[topic])
        whole = question_form(question, answer, as_json=True)
        refused = pick(rng, (
            question_form(question, answer, as_json=False),
            whole[: 14 + int(rng.random() * (len(whole) - 15))],
            json.dumps({"question": question}),
            json.dumps({"answer": answer}),
            whole.replace('", "', '" "'),
        ))  # fmt: skip
        complaint = pick(rng, COMPLAINTS)
        if _held_out(refused + complaint) == (split == "held_out"):
            return Repair("repair", pick(rng, SYSTEMS), topic, whole, refused=refused, complaint=complaint)


def _score(rng: Random, split: Split) -> Conversation:
    """Make a request to score an answer. Right ones are learned by heart, so only wrong ones are held out."""
    while True:
        question, answer = pick(rng, pick(rng, tuple(facts().values())))
        score = pick(rng, tuple(REASONS))
        if score == 1:
            answer = pick(rng, pick(rng, tuple(facts().values())))[1]
        elif score == 3:
            words = answer.split()
            answer = " ".join(words[: 1 + int(rng.random() * (len(words) - 1))])
        right = any((question, answer) in pairs for pairs in facts().values())
        if right != (score == 5):
            continue
        if right or _held_out(question + answer) == (split == "held_out"):
            judgement = json.dumps({"reason": REASONS[score], "score": score})
            row = {"question": question, "answer": answer}
            return _of("score", RUBRIC.prompt("question", "answer"), row, judgement)


def wrong_sum(rng: Random, right: int) -> int:
    """Return a sum with a wrong digit or carry, or another number."""
    while True:
        wrong = right + pick(rng, (-10, -1, 1, 10, int(rng.random() * 200) - right))
        if wrong >= 0 and wrong != right:
            return wrong


def _pair(rng: Random, split: Split) -> Conversation:
    while True:
        a, b = int(rng.random() * 100), int(rng.random() * 100)
        if sum_is_held_out(a, b) == (split == "held_out"):
            break
    choice = pick(rng, (FIRST, SECOND, FIRST, SECOND, TIE))
    right, *wrong = (str(one) for one in (a + b, wrong_sum(rng, a + b), wrong_sum(rng, a + b)))
    ties = [(right, right), (right, right), (wrong[0], wrong[0]), tuple(wrong)]
    first, second = {FIRST: (right, wrong[0]), SECOND: (wrong[0], right), TIE: pick(rng, ties)}[choice]
    row = {"question": SUM_PROMPTS[0].format(a=a, b=b), "first": first, "second": second}
    return _of("pair", pairwise_prompt(), row, choice)


_DRAWN = {"label": _label, "repair": _repair, "score": _score, "pair": _pair}


def reviews(split: Split, seed: int, skills: Sequence[Review] = REVIEWS) -> Iterator[Conversation]:
    """Yield endless conversations of `split`, each of a skill drawn from `skills`."""
    rng = Random(seed)
    choices = tuple(skills)
    while True:
        yield _DRAWN[pick(rng, choices)](rng, split)
