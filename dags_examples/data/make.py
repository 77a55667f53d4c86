# SPDX-License-Identifier: Apache-2.0
"""Make the data of the examples, with a fixed seed: ``python -m dags_examples.data.make``, where Makefile is.

``documents/``: 2,000 raw documents of two sources, as JSON lines. Each has its true values, which the
pipeline does not read: `topic`, `quality`, and `planted`, its flaw: ``language``, ``exact_duplicate`` or
``near_duplicate`` of an earlier document, ``too_few_words``. Twenty of the lines are not JSON. The demo model
has not seen any of them.

``questions.jsonl``: 300 sums with their answers, each a different one.

This script makes all texts, and they have the license of the code.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from dags_examples.demo_model.documents import Document, document, name

HERE = Path(__file__).parent
PLANTED = {"language": 120, "exact_duplicate": 100, "near_duplicate": 100, "too_few_words": 60}
BROKEN_ROWS = 20
DOCUMENTS, QUESTIONS = 2000, 300

FOREIGN = {
    "de": ("Am Morgen ging {name} mit seinen Kindern zum Hafen, weil die Boote aus {place} zurückkamen.",
           "Niemand wusste, warum {name} im Winter nicht mehr nach {place} fahren wollte."),
    "fr": ("Le matin, {name} allait au port avec ses enfants parce que les bateaux de {place} rentraient.",
           "Personne ne savait pourquoi {name} ne voulait plus aller à {place} pendant l'hiver."),
}  # fmt: skip
BROKEN = ('{"text": "cut off', '["a list"]', "\x00\x01", '{"text": "half a character \\ud800"}')


def foreign(rng: Random) -> str:
    sentences = FOREIGN[rng.choice(sorted(FOREIGN))]
    return " ".join(rng.choice(sentences).format(name=name(rng), place=name(rng)) for _ in range(6))


def edited(rng: Random, text: str) -> str:
    """Replace one word and cut the end of one sentence, as between two copies of a page."""
    words = text.split()
    words[rng.randrange(len(words))] = name(rng)
    return " ".join(words[:-1])


def line(text: str, planted: str | None, of: Document | None = None) -> str:
    truth = {"topic": of.topic, "quality": of.quality} if of else {"topic": None, "quality": None}
    return json.dumps({"text": text, **truth, "planted": planted}, ensure_ascii=False)


def documents(rng: Random) -> list[str]:
    """Return the lines of all sources, duplicates after their originals."""
    whole = DOCUMENTS - BROKEN_ROWS - sum(PLANTED.values())
    good = [(rng.random(), document(rng, "held_out")) for _ in range(whole)]
    placed = [(at, line(one.text, None, one)) for at, one in good]
    for at, one in rng.sample(good, PLANTED["exact_duplicate"]):
        placed.append((rng.uniform(at, 1), line(one.text, "exact_duplicate", one)))
    for at, one in rng.sample(good, PLANTED["near_duplicate"]):
        placed.append((rng.uniform(at, 1), line(edited(rng, one.text), "near_duplicate", one)))
    for _ in range(PLANTED["language"]):
        placed.append((rng.random(), line(foreign(rng), "language")))
    for _ in range(PLANTED["too_few_words"]):
        placed.append((rng.random(), line(f"Read more about {name(rng)} here.", "too_few_words")))
    placed += [(rng.random(), BROKEN[number % len(BROKEN)]) for number in range(BROKEN_ROWS)]
    return [text for _, text in sorted(placed)]


def questions(rng: Random) -> list[str]:
    sums = rng.sample([(a, b) for a in range(100) for b in range(100)], QUESTIONS)
    return [
        json.dumps({"id": f"q{number:03}", "question": f"What is {a} + {b}?", "answer": str(a + b)})
        for number, (a, b) in enumerate(sums)
    ]


def main(folder: Path) -> None:
    lines = documents(Random(1))
    (folder / "documents").mkdir(parents=True, exist_ok=True)
    for source, part in (("forum", lines[:800]), ("library", lines[800:])):
        (folder / f"documents/{source}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")
    (folder / "questions.jsonl").write_text("\n".join(questions(Random(2))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(HERE)
