# SPDX-License-Identifier: Apache-2.0
"""Filter rows by heuristic quality, language, or a threshold; each drop names its rule."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.rows import require
from airflow_provider_raybatch.workflows.sift import Checked, Drop, text_column, with_column

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]")
_LETTER = re.compile(r"[^\W\d_]")
_BULLETS = ("-", "*", "\u2022", "\u2023", "\u25e6")
_LANGUAGE_CHARACTERS = 2000


@dataclass(frozen=True)
class Heuristics:
    """Drops documents that are not running text, by rules like those of Gopher (Rae et al. 2021).

    The parameters are in the order of their rules; ``None`` switches a rule off.

    :param column: of the text. A null or blank one is dropped by ``empty``.
    :param max_characters: ``too_long``; checked first, so that a huge document costs nothing.
    :param min_words: ``too_few_words``.
    :param max_words: ``too_many_words``.
    :param max_control_share: of characters: ``undecodable``, control and replacement characters.
    :param mean_word_length: least and greatest: ``word_length``.
    :param min_alphabetic_share: of words with a letter: ``not_alphabetic``.
    :param max_symbol_share: ``#`` and ``...`` for each word: ``symbols``.
    :param max_bullet_share: of lines: ``bullets``.
    :param max_ellipsis_share: of lines that end with an ellipsis: ``ellipses``.
    :param max_repeated_line_share: of lines that are copies of others: ``repeated_lines``.
    :param max_top_phrase_share: of characters in the most frequent run of two words: ``repeated_phrase``.
    """

    column: str = "text"
    name: str = "heuristics"
    max_characters: int | None = 1_000_000
    min_words: int | None = 20
    max_words: int | None = 100_000
    max_control_share: float | None = 0.01
    mean_word_length: tuple[float, float] | None = (2.5, 12.0)
    min_alphabetic_share: float | None = 0.7
    max_symbol_share: float | None = 0.1
    max_bullet_share: float | None = 0.9
    max_ellipsis_share: float | None = 0.3
    max_repeated_line_share: float | None = 0.3
    max_top_phrase_share: float | None = 0.2

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        return Checked(batch, [self.check(text) for text in text_column(batch, self.column)])

    def check(self, text: str | None) -> Drop | None:
        """One document."""
        if text is None or not text.strip():
            return Drop("empty", "the text is empty")
        if self.max_characters is not None and len(text) > self.max_characters:
            return Drop("too_long", f"{count_of(len(text), 'character')}, more than {self.max_characters:,}")
        words = text.split()
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return self._of_words(text, words) or self._of_lines(lines) or self._of_phrases(words)

    def _of_words(self, text: str, words: list[str]) -> Drop | None:
        count = len(words)
        if self.min_words is not None and count < self.min_words:
            return Drop("too_few_words", f"{count_of(count, 'word')}, fewer than {self.min_words:,}")
        if self.max_words is not None and count > self.max_words:
            return Drop("too_many_words", f"{count_of(count, 'word')}, more than {self.max_words:,}")
        if drop := _above(
            "undecodable",
            len(_CONTROL.findall(text)) / len(text),
            self.max_control_share,
            "of the characters are not text",
        ):
            return drop
        mean = sum(map(len, words)) / count
        if self.mean_word_length is not None:
            least, most = self.mean_word_length
            if not least <= mean <= most:
                return Drop("word_length", f"{mean:.1f} characters a word, not between {least} and {most}")
        alphabetic = sum(1 for word in words if _LETTER.search(word)) / count
        if self.min_alphabetic_share is not None and alphabetic < self.min_alphabetic_share:
            return Drop(
                "not_alphabetic",
                f"{alphabetic:.0%} of the words have a letter, less than {self.min_alphabetic_share:.0%}",
            )
        symbols = text.count("#") + text.count("...") + text.count("\u2026")
        return _above("symbols", symbols / count, self.max_symbol_share, "symbols for each word")

    def _of_lines(self, lines: list[str]) -> Drop | None:
        count = len(lines)
        bullets = sum(line.startswith(_BULLETS) for line in lines)
        ellipses = sum(line.endswith(("...", "\u2026")) for line in lines)
        return (
            _above("bullets", bullets / count, self.max_bullet_share, "of the lines are bullets")
            or _above(
                "ellipses", ellipses / count, self.max_ellipsis_share, "of the lines end with an ellipsis"
            )
            or _above(
                "repeated_lines",
                1 - len(set(lines)) / count,
                self.max_repeated_line_share,
                "of the lines are copies of others",
            )
        )

    def _of_phrases(self, words: list[str]) -> Drop | None:
        if self.max_top_phrase_share is None or len(words) < 2:
            return None
        ((phrase, count),) = Counter(pairwise(words)).most_common(1)
        if count < 3:
            return None
        share = count * sum(map(len, phrase)) / sum(map(len, words))
        return _above("repeated_phrase", share, self.max_top_phrase_share, "of the text is one phrase")


class LanguageFilter:
    """Adds `language` and `language_score` (py3langid, first 2,000 characters), and drops other languages.

    Rules: ``language``, and ``unsure_language`` where the score is below `min_score`.

    :param languages: ISO 639-1 codes that stay; empty for all.
    :param min_score: probability of the language, 0 to 1.
    :raises WorkflowError: py3langid doesn't know one of the languages.
    """

    def __init__(
        self,
        languages: Collection[str],
        column: str = "text",
        min_score: float = 0.5,
        name: str = "language",
    ) -> None:
        self.name = name
        self._column, self._languages, self._least = column, frozenset(languages), min_score
        if unknown := sorted(self._languages - set(_identifier().labels)):
            raise WorkflowError(
                f"languages: {unknown[0]!r} is not one of the {len(_identifier().labels)} that py3langid "
                "knows; use an ISO 639-1 code, such as 'en'."
            )

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        found = [self.identify(text) for text in text_column(batch, self._column)]
        batch = with_column(batch, "language", pa.array([code for code, _ in found], pa.string()))
        batch = with_column(batch, "language_score", pa.array([score for _, score in found], pa.float64()))
        return Checked(batch, [self._drop(code, score) for code, score in found])

    @staticmethod
    def identify(text: str | None) -> tuple[str | None, float]:
        """Language and probability of one text; ``None`` for a text without letters."""
        if text is None or not _LETTER.search(text):
            return None, 0.0
        code, score = _identifier().classify(text[:_LANGUAGE_CHARACTERS])
        return str(code), float(score)

    def _drop(self, code: str | None, score: float) -> Drop | None:
        if code is None:
            return Drop("unsure_language", "the text has no letters")
        if self._languages and code not in self._languages:
            return Drop("language", f"the language is {code} ({score:.2f})")
        if score < self._least:
            return Drop("unsure_language", f"the language is {code} with {score:.2f} only")
        return None


class Threshold:
    """Drops rows whose number is out of bounds or whose label is not wanted, such as a judge's score.

    Rules: ``<column>_missing``, ``<column>_below``, ``<column>_above``, ``<column>_unwanted``.

    :param column: numbers or labels.
    :param least: smallest number that stays.
    :param most: greatest number that stays.
    :param labels: that stay.
    :raises WorkflowError: neither bound nor labels are given.
    """

    def __init__(
        self,
        column: str,
        least: float | None = None,
        most: float | None = None,
        labels: Collection[str] | None = None,
        name: str | None = None,
    ) -> None:
        if least is None and most is None and labels is None:
            raise WorkflowError(f"threshold: none is given for {column!r}; set least, most or labels.")
        self.name = name or f"{column}_threshold"
        self._column, self._least, self._most = column, least, most
        self._labels = None if labels is None else frozenset(labels)

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        require(batch.schema, self._column, "column")
        column = batch.column(self._column)
        if (self._least is not None or self._most is not None) and not (
            pa.types.is_integer(column.type)
            or pa.types.is_floating(column.type)
            or pa.types.is_null(column.type)
        ):
            raise WorkflowError(
                f"column: {self._column!r} holds {column.type} and not numbers; name a column of numbers, or "
                "give labels."
            )
        return Checked(batch, [self._drop(value) for value in column.to_pylist()])

    def _drop(self, value: Any) -> Drop | None:
        if value is None:
            return Drop(f"{self._column}_missing", f"{self._column} has no value")
        if self._least is not None and not value >= self._least:
            return Drop(f"{self._column}_below", f"{self._column} is {value}, less than {self._least}")
        if self._most is not None and not value <= self._most:
            return Drop(f"{self._column}_above", f"{self._column} is {value}, more than {self._most}")
        if self._labels is not None and value not in self._labels:
            return Drop(f"{self._column}_unwanted", f"{self._column} is {value!r}")
        return None


def _above(rule: str, share: float, most: float | None, what: str) -> Drop | None:
    if most is None or share <= most:
        return None
    return Drop(rule, f"{share:.0%} {what}, more than {most:.0%}")


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
