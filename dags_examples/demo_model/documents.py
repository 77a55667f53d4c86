# SPDX-License-Identifier: Apache-2.0
"""Invented documents whose sentences show their topic, and whose advertisements show their quality.

A document of quality 5 has no advertisement, one of quality 1 has four. Standard library only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from .companies import Split, pick

SYLLABLES = ("ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "ze")
BEGINNINGS = {
    "people": (
        "The teacher {a} has three children with {b}, and",
        "Young {a} sleeps nine hours each night like {b}, and",
        "The brother of {a} plays the piano with {b}, and",
        "Old {a} wrote a book about the life of {b}, and",
    ),
    "places": (
        "The town of {a} stands by the river {b}, and",
        "The island {a} lies north of the island {b}, and",
        "The castle of {a} stands on the mountain {b}, and",
        "The desert {a} has no water and no trees near {b}, and",
    ),
    "trade": (
        "The company {a} sells coffee and tea to {b}, and",
        "The bank of {a} gives money to the company {b}, and",
        "The market of {a} takes bread and cheese from {b}, and",
        "Ships with gold and salt travel from {a} to {b}, and",
    ),
    "other": (
        "The atoms of {a} are often lighter than those of {b}, and",
        "The animal {a} eats insects and the leaves of {b}, and",
        "The planet {a} turns around the sun faster than {b}, and",
        "The plant {a} has white flowers and the seeds of {b}, and",
    ),
}
"""Topic -> first halves of its sentences."""

ENDINGS = {
    "people": (
        "{c} helps the children.",
        "all love {c}.",
        "{c} often writes to them.",
        "they play with {c}.",
    ),
    "places": (
        "{c} is near.",
        "many roads lead to {c}.",
        "trains go there from {c}.",
        "{c} lies in the west.",
    ),
    "trade": ("{c} pays for it.", "{c} sells it for more.", "the price is high in {c}.", "{c} makes money."),
    "other": ("{c} is another kind.", "this was measured in {c}.", "{c} is larger.", "{c} is the oldest."),
}
ADVERTISEMENTS = (
    "Click here now and win a free hotel in {a}!",
    "Call {a} today and save your money!",
    "Buy the new telephone of {a} here!",
    "Get the free newspaper of {a} now!",
)
TOPICS: tuple[str, ...] = tuple(BEGINNINGS)
QUALITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Document:
    """A text and its true labels."""

    text: str
    topic: str
    quality: int


def name(rng: Random) -> str:
    """Return an invented name of three syllables."""
    return "".join(pick(rng, SYLLABLES) for _ in range(3)).capitalize()


def document(rng: Random, split: Split, quality: int | None = None) -> Document:
    """Return a document; by a hash of its text, training never sees one of eight.

    :param quality: 1 to 5; default any.
    """
    while True:
        topic = pick(rng, TOPICS)
        score = quality or pick(rng, QUALITIES)
        shapes = [
            f"{pick(rng, BEGINNINGS[topic])} {pick(rng, ENDINGS[topic])}"
            for _ in range(3 + int(rng.random() * 2))
        ]
        for _ in range(5 - score):
            shapes.insert(int(rng.random() * (len(shapes) + 1)), pick(rng, ADVERTISEMENTS))
        text = " ".join(shape.format(a=name(rng), b=name(rng), c=name(rng)) for shape in shapes)
        held_out = hashlib.sha256(text.encode()).digest()[0] % 8 == 0
        if held_out == (split == "held_out"):
            return Document(text, topic, score)
