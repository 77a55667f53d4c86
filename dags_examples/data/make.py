# SPDX-License-Identifier: Apache-2.0
"""Make the data of the examples, with a fixed seed: ``python dags_examples/data/make.py``.

``documents/``: 2,000 raw documents of two sources, as JSON lines. `planted` tells what is wrong with one, and
the pipeline does not read it: ``language``, ``exact_duplicate`` or ``near_duplicate`` of an earlier document,
``too_few_words``. Twenty of the lines are no JSON.

``questions.jsonl``: 300 sums with their answers, each a different one.

All texts are made here, and licensed like the code.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
PLANTED = {"language": 120, "exact_duplicate": 100, "near_duplicate": 100, "too_few_words": 60}
BROKEN_ROWS = 20
DOCUMENTS, QUESTIONS = 2000, 300

SUBJECTS = ("The harbour master", "A young teacher", "My neighbour", "The old gardener", "Her brother")
VERBS = ("walked slowly to", "wrote a long letter about", "wanted to know more about", "told the children of")
PLACES = ("the market", "the river", "the old library", "the station", "a small island", "the northern road")
TIMES = ("in the early morning", "on a rainy afternoon", "before the first snow", "after the harvest")
ENDINGS = ("and nobody was surprised.", "because the days were short.", "while the others slept.")
SYLLABLES = ("ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "ze")
FOREIGN = {
    "de": ("Am Morgen ging {name} mit seinen Kindern zum Hafen, weil die Boote aus {place} zurückkamen.",
           "Niemand wusste, warum {name} im Winter nicht mehr nach {place} fahren wollte."),
    "fr": ("Le matin, {name} allait au port avec ses enfants parce que les bateaux de {place} rentraient.",
           "Personne ne savait pourquoi {name} ne voulait plus aller à {place} pendant l'hiver."),
}  # fmt: skip
BROKEN = ('{"text": "cut off', '["a list"]', "\x00\x01", '{"text": "half a character \\ud800"}')


def name(rng: Random) -> str:
    return "".join(rng.choices(SYLLABLES, k=3)).capitalize()


def english(rng: Random) -> str:
    sentences = [
        f"{rng.choice(SUBJECTS)} {name(rng)} {rng.choice(VERBS)} {rng.choice(PLACES)} of {name(rng)} "
        f"{rng.choice(TIMES)}, {rng.choice(ENDINGS)}"
        for _ in range(rng.randint(3, 6))
    ]
    return " ".join(sentences)


def foreign(rng: Random) -> str:
    sentences = FOREIGN[rng.choice(sorted(FOREIGN))]
    return " ".join(rng.choice(sentences).format(name=name(rng), place=name(rng)) for _ in range(6))


def edited(rng: Random, text: str) -> str:
    """One word replaced and one sentence's end cut, as between two copies of a page."""
    words = text.split()
    words[rng.randrange(len(words))] = name(rng)
    return " ".join(words[:-1])


def documents(rng: Random) -> list[str]:
    """The lines of all sources, duplicates behind what they repeat."""
    good = [(rng.random(), english(rng)) for _ in range(DOCUMENTS - BROKEN_ROWS - sum(PLANTED.values()))]
    placed: list[tuple[float, str, str | None]] = [(at, text, None) for at, text in good]
    for at, text in rng.sample(good, PLANTED["exact_duplicate"]):
        placed.append((rng.uniform(at, 1), text, "exact_duplicate"))
    for at, text in rng.sample(good, PLANTED["near_duplicate"]):
        placed.append((rng.uniform(at, 1), edited(rng, text), "near_duplicate"))
    for _ in range(PLANTED["language"]):
        placed.append((rng.random(), foreign(rng), "language"))
    for _ in range(PLANTED["too_few_words"]):
        placed.append((rng.random(), f"Read more about {name(rng)} here.", "too_few_words"))
    lines = [(at, json.dumps({"text": text, "planted": why}, ensure_ascii=False)) for at, text, why in placed]
    lines += [(rng.random(), BROKEN[number % len(BROKEN)]) for number in range(BROKEN_ROWS)]
    return [line for _, line in sorted(lines)]


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
