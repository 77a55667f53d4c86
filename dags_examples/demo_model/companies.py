# SPDX-License-Identifier: Apache-2.0
"""Invented company names whose words show the industry, and demo rows made of them.

A name combines a stem (a surname, a place or an invented word) with telling words of one industry. A hash of
stem and telling words assigns each combination to one of two splits, so that training never sees the names of
the evaluation and of the demo rows. Standard library only.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

Split = Literal["train", "held_out"]
T = TypeVar("T")

_WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
STEMS, PREFIXES, SUFFIXES = (tuple[str, ...](_WORDS[kind]) for kind in ("stems", "prefixes", "suffixes"))
ONSETS, VOWELS, ENDINGS = (tuple[str, ...](_WORDS[kind]) for kind in ("onsets", "vowels", "endings"))
COUNTRIES: tuple[str, ...] = tuple(_WORDS["countries"])
TELLING_WORDS: dict[str, tuple[str, ...]] = {
    industry: tuple(words) for industry, words in _WORDS["telling"].items()
}
"""Industry -> words in a company's name that tell it."""

INDUSTRIES: tuple[str, ...] = tuple(TELLING_WORDS)
"""The categories, in alphabetical order."""


@dataclass(frozen=True)
class Company:
    """An invented company: its name and the industry that its name shows."""

    name: str
    industry: str


def pick(rng: Random, items: tuple[T, ...]) -> T:
    """Draw one of ``items`` with ``Random.random``, the only method whose sequence Python guarantees."""
    return items[int(rng.random() * len(items))]


def _invented_word(rng: Random) -> str:
    syllables = "".join(pick(rng, ONSETS) + pick(rng, VOWELS) for _ in range(1 + int(rng.random() * 2)))
    return (syllables + pick(rng, ENDINGS)).capitalize()


def _stem(rng: Random) -> str:
    return pick(rng, STEMS) if rng.random() < 0.7 else _invented_word(rng)


def split_of(stem: str, telling: str) -> Split:
    """Return the split of the combination: one of eight is held out."""
    digest = hashlib.sha256(f"{stem}|{telling}".encode()).digest()
    return "held_out" if digest[0] % 8 == 0 else "train"


def company(rng: Random, split: Split) -> Company:
    """Return an invented company whose combination of stem and telling words belongs to ``split``."""
    industry = pick(rng, INDUSTRIES)
    while True:
        stem, telling = _stem(rng), pick(rng, TELLING_WORDS[industry])
        if split_of(stem, telling) == split:
            break
    shape = rng.random()
    if shape < 0.12:
        name = f"{stem} & {_stem(rng)} {telling}"
    elif shape < 0.2:
        name = f"{stem} {_stem(rng)} {telling}"
    elif shape < 0.3:
        name = f"{pick(rng, PREFIXES)} {stem} {telling}"
    elif shape < 0.36:
        name = f"{telling} of {stem}"
    else:
        name = f"{stem} {telling}"
    if rng.random() < 0.4:
        name = f"{name} {pick(rng, SUFFIXES)}"
    if rng.random() < 0.05:
        name = name.upper() if rng.random() < 0.5 else name.lower()
    return Company(name, industry)


def company_rows(count: int, seed: int = 7) -> list[dict[str, str | int]]:
    """Return ``count`` rows of held-out companies with distinct names: a demo dataset with known labels.

    Columns: ``company_id`` (1, 2, ...), ``company``, ``country``, ``founded`` (year), ``employees`` and
    ``industry``, the true label. The same ``count`` and ``seed`` give the same rows on every Python version.
    """
    rng = Random(seed)
    rows: list[dict[str, str | int]] = []
    seen: set[str] = set()
    while len(rows) < count:
        drawn = company(rng, "held_out")
        if drawn.name in seen:
            continue
        seen.add(drawn.name)
        rows.append({
            "company_id": len(rows) + 1,
            "company": drawn.name,
            "country": pick(rng, COUNTRIES),
            "founded": 1900 + int(rng.random() * 125),
            "employees": 5 + int(rng.random() ** 3 * 5000),
            "industry": drawn.industry,
        })
    return rows
