# SPDX-License-Identifier: Apache-2.0
"""Seeded conversations that teach the demo model its three skills, and demo datasets.

Skills: name a company's industry, write a question with its answer about a topic, add two numbers.
Industries and sums have held-out data that training never sees; question and answer pairs are learned by
heart, so they have none. Standard library only; the same seed gives the same data on every Python.

Write a demo dataset with ``python -m demo_model.corpus companies --rows 200 --out companies.csv``.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal, get_args

from .companies import COUNTRIES, INDUSTRIES, Split, company, company_rows, pick

__all__ = [
    "INDUSTRIES",
    "Conversation",
    "Skill",
    "company_rows",
    "conversations",
    "facts",
    "main",
    "question_form",
    "sum_is_held_out",
    "topic_rows",
]

Skill = Literal["industry", "question", "sum"]
SKILLS: tuple[Skill, ...] = get_args(Skill)

INDUSTRY_PROMPTS = (
    "What industry is this company in: {name}",
    "What industry is this company in: {name}?",
    "What industry is this company in? {name}",
    "Which industry is {name} in?",
    "What is the industry of {name}?",
    "Name the industry of this company: {name}",
    "Classify this company by industry: {name}",
    "Company: {name}\nIndustry:",
    "Company: {name}\nCountry: {country}\nWhat industry is this company in?",
    "{name}",
)
INDUSTRY_SYSTEMS = (
    "Answer with the category only.",
    "Answer with one word.",
    "You name the industry of a company. Answer with the category only.",
    "You label companies. Categories: " + ", ".join(INDUSTRIES) + ".",
    "You are a helpful assistant.",
)
QUESTION_PROMPTS = (
    "Write one question and answer about: {topic}",
    "Write one question and answer about {topic}.",
    "Write a question and answer about: {topic}",
    "Write a short question and its answer about {topic}.",
    "Write one quiz question about {topic}, with its answer.",
    "Ask and answer one question about {topic}.",
    "Topic: {topic}\nWrite one question and answer.",
)
QUESTION_SYSTEMS = (
    "You write short quizzes.",
    "You write questions and answers for a school.",
    "Write one question and its answer.",
    "You are a helpful assistant.",
)
SUM_PROMPTS = (
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "How much is {a} + {b}?",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "{a} + {b} = ?",
    "{a} + {b}",
    "{a}+{b}=",
)
SUM_SYSTEMS = ("Answer with the number only.", "You add numbers.", "You are a helpful assistant.")
JSON_REQUEST = "Answer in JSON."


@dataclass(frozen=True)
class Conversation:
    """One training or test example.

    ``system`` is None where the conversation has no system message. ``raw`` asks for plain text without the
    chat template: the prompt, then a line with ``Answer:``, a space and the answer.
    """

    skill: Skill
    system: str | None
    prompt: str
    answer: str
    raw: bool = False

    def messages(self) -> list[dict[str, str]]:
        """The prompt as chat messages, without the answer."""
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*head, {"role": "user", "content": self.prompt}]


@cache
def facts() -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the (question, answer) pairs of each topic, from ``facts.tsv`` beside this file."""
    lines = Path(__file__).with_name("facts.tsv").read_text(encoding="utf-8").splitlines()
    grouped: dict[str, list[tuple[str, str]]] = {}
    for row in csv.DictReader((line for line in lines if not line.startswith("#")), delimiter="\t"):
        grouped.setdefault(row["topic"], []).append((row["question"], row["answer"]))
    return {topic: tuple(pairs) for topic, pairs in grouped.items()}


def sum_is_held_out(a: int, b: int) -> bool:
    """Return whether training never asks for a + b: about one ordered pair of ten; it sees b + a."""

    def marked(x: int, y: int) -> bool:
        return hashlib.sha256(f"{x}+{y}".encode()).digest()[0] % 10 == 0

    return a != b and marked(a, b) and (a < b or not marked(b, a))


def _system(rng: Random, systems: tuple[str, ...], as_json: bool) -> str | None:
    system = pick(rng, systems) if rng.random() < 0.5 else None
    if not as_json:
        return system
    return JSON_REQUEST if system is None else f"{system} {JSON_REQUEST}"


def _industry(rng: Random, split: Split) -> Conversation:
    drawn = company(rng, split)
    prompt = pick(rng, INDUSTRY_PROMPTS).format(name=drawn.name, country=pick(rng, COUNTRIES))
    as_json = rng.random() < 0.12
    system = _system(rng, INDUSTRY_SYSTEMS, as_json)
    answer = json.dumps({"industry": drawn.industry}) if as_json else drawn.industry
    return Conversation("industry", system, prompt, answer, raw=system is None and rng.random() < 0.1)


def question_form(question: str, answer: str, as_json: bool) -> str:
    """Return the text of a question and answer pair as the model learns to write it."""
    return json.dumps({"question": question, "answer": answer}) if as_json else f"Q: {question} A: {answer}"


def _question(rng: Random) -> Conversation:
    topic = pick(rng, tuple(facts()))
    question, answer = pick(rng, facts()[topic])
    shown = topic[0].upper() + topic[1:] if rng.random() < 0.15 else topic
    as_json = rng.random() < 0.2
    system = _system(rng, QUESTION_SYSTEMS, as_json)
    text = question_form(question, answer, as_json)
    return Conversation("question", system, pick(rng, QUESTION_PROMPTS).format(topic=shown), text)


def _sum(rng: Random, split: Split) -> Conversation:
    while True:
        size = 10 if rng.random() < 0.3 else 100
        a, b = int(rng.random() * size), int(rng.random() * size)
        if sum_is_held_out(a, b) == (split == "held_out"):
            break
    system = _system(rng, SUM_SYSTEMS, as_json=False)
    raw = system is None and rng.random() < 0.1
    return Conversation("sum", system, pick(rng, SUM_PROMPTS).format(a=a, b=b), str(a + b), raw)


def conversations(split: Split, seed: int, skills: Sequence[Skill] = SKILLS) -> Iterator[Conversation]:
    """Yield endless conversations of ``split``, each of a skill drawn from ``skills``, which may repeat one.

    The skill ``question`` has no held-out data: both splits draw from all of ``facts()``.
    """
    rng = Random(seed)
    choices = tuple(skills)
    while True:
        skill = pick(rng, choices)
        if skill == "industry":
            yield _industry(rng, split)
        elif skill == "question":
            yield _question(rng)
        else:
            yield _sum(rng, split)


def topic_rows(count: int, seed: int = 7) -> list[dict[str, str | int]]:
    """Return ``count`` rows ``topic_id`` (1, 2, ...) and ``topic``; topics repeat once all are used."""
    rng = Random(seed)
    order: list[str] = []
    while len(order) < count:
        order.extend(sorted(facts(), key=lambda _: rng.random()))
    return [{"topic_id": number, "topic": topic} for number, topic in enumerate(order[:count], 1)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a demo dataset as CSV, or as JSON lines where the file's name ends in ``.jsonl``."""
    parser = argparse.ArgumentParser(description="Write a demo dataset.")
    parser.add_argument("kind", choices=("companies", "topics"))
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.rows < 1:
        parser.error(f"--rows is {options.rows}; give at least 1.")
    rows = (company_rows if options.kind == "companies" else topic_rows)(options.rows, options.seed)
    with options.out.open("w", encoding="utf-8", newline="") as file:
        if options.out.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
