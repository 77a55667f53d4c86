# SPDX-License-Identifier: Apache-2.0
"""Filter rows: responses by a JSON schema, texts by heuristic quality and language, values by thresholds.

Each drop names its rule.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.text import count_of, cut_to
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.rows import require
from airflow_provider_raybatch.job.input.json_types import arrow_type
from airflow_provider_raybatch.job.request.json_schema import check_schema, misfit
from airflow_provider_raybatch.job.tasks.typed_columns import column_kinds, values_of
from airflow_provider_raybatch.workflows.sift import Checked, Drop, text_column, with_column

_LONGEST_VALUE = 80
_LONGEST_RESPONSE = 1_000_000
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]")
_LETTER = re.compile(r"[^\W\d_]")
_BULLETS = ("-", "*", "\u2022", "\u2023", "\u25e6")
_LANGUAGE_CHARACTERS = 2000


class SchemaCheck:
    """Drops responses that are not JSON, or do not fit a schema.

    Rules: ``no_response``, ``too_long`` (more than a million characters), ``not_json``, ``schema``.

    :param schema: JSON schema of an object. It may be the one in `structured_outputs`: a response that was
        cut off, or generated without structured output, can violate it.
    :param column: of the responses.
    :param extract: whether each property becomes a column, with the type that it has with `response_format`.
    :param prefix: put before the names of these columns.
    :raises UsageError: `schema` is not a JSON schema, or `extract` finds no properties in it.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        column: str = "response",
        extract: bool = True,
        prefix: str = "",
        name: str = "schema",
    ) -> None:
        self.name = name
        self._column = column
        self._structured = {"json": json.dumps(schema)}
        try:
            check_schema(self._structured)
        except ValueError as error:
            raise UsageError(f"schema: it {error}.") from error
        if extract and not schema.get("properties"):
            raise UsageError(
                "schema: it has no 'properties' that could become columns; add them or set extract=False."
            )
        try:
            self._kinds = column_kinds(schema) if extract else {}
        except ValueError as error:
            raise UsageError(f"schema: {error}.") from error
        self._prefix = prefix

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        parsed = [self.check(text) for text in text_column(batch, self._column)]
        drops = [one if isinstance(one, Drop) else None for one in parsed]
        for key, kind in self._kinds.items():
            values = [None if isinstance(one, Drop) else one[key] for one in parsed]
            batch = with_column(batch, self._prefix + key, pa.array(values, arrow_type(kind)))
        return Checked(batch, drops)

    def check(self, text: str | None) -> dict[str, Any] | Drop:
        """The columns of one response, or its :class:`Drop`."""
        if text is None or not text.strip():
            return Drop("no_response", "the response is empty")
        if len(text) > _LONGEST_RESPONSE:
            return Drop("too_long", f"the response has {count_of(len(text), 'character')}")
        try:
            value = json.loads(text, parse_constant=_refuse)
            if "\\ud" in text.lower():
                json.dumps(value, ensure_ascii=False).encode()  # Half a surrogate pair is not a character.
        except UnicodeEncodeError:
            return Drop("not_json", "the response has half a character (a lone surrogate)")
        except (ValueError, RecursionError) as error:
            return Drop("not_json", f"the response is not JSON ({cut_to(str(error), _LONGEST_VALUE)})")
        if wrong := misfit(value, self._structured):
            return Drop("schema", f"the response does not fit the schema ({wrong})")
        try:
            return values_of(text, self._kinds) if self._kinds else {}
        except ValueError as error:
            return Drop("schema", f"the response does not fit its columns ({error})")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")


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
        return next(filter(None, self._drops(text)), None)

    def _drops(self, text: str) -> Iterator[Drop | None]:
        """By each rule in order, computed when it is asked for."""
        if self.max_characters is not None and len(text) > self.max_characters:
            yield Drop("too_long", f"{count_of(len(text), 'character')}, more than {self.max_characters:,}")
        words = text.split()
        count = len(words)
        if self.min_words is not None and count < self.min_words:
            yield Drop("too_few_words", f"{count_of(count, 'word')}, fewer than {self.min_words:,}")
        if self.max_words is not None and count > self.max_words:
            yield Drop("too_many_words", f"{count_of(count, 'word')}, more than {self.max_words:,}")
        undecodable = len(_CONTROL.findall(text)) / len(text)
        yield _above("undecodable", undecodable, self.max_control_share, "of the characters are not text")
        letters = sum(map(len, words))
        if self.mean_word_length is not None:
            (least, most), mean = self.mean_word_length, letters / count
            if not least <= mean <= most:
                yield Drop("word_length", f"{mean:.1f} characters a word, not between {least} and {most}")
        alphabetic = sum(1 for word in words if _LETTER.search(word)) / count
        if self.min_alphabetic_share is not None and alphabetic < self.min_alphabetic_share:
            why = f"of the words have a letter, less than {self.min_alphabetic_share:.0%}"
            yield Drop("not_alphabetic", f"{alphabetic:.0%} {why}")
        symbols = (text.count("#") + text.count("...") + text.count("\u2026")) / count
        yield _above("symbols", symbols, self.max_symbol_share, "symbols for each word")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        bullets = sum(line.startswith(_BULLETS) for line in lines) / len(lines)
        yield _above("bullets", bullets, self.max_bullet_share, "of the lines are bullets")
        ellipses = sum(line.endswith(("...", "\u2026")) for line in lines) / len(lines)
        yield _above("ellipses", ellipses, self.max_ellipsis_share, "of the lines end with an ellipsis")
        copies = 1 - len(set(lines)) / len(lines)
        yield _above(
            "repeated_lines", copies, self.max_repeated_line_share, "of the lines are copies of others"
        )
        ((phrase, times),) = Counter(pairwise(words)).most_common(1) or [(("", ""), 0)]
        if times > 2:
            share = times * sum(map(len, phrase)) / letters
            yield _above("repeated_phrase", share, self.max_top_phrase_share, "of the text is one phrase")


class LanguageFilter:
    """Adds `language` and `language_score` (py3langid, first 2,000 characters), and drops other languages.

    Rules: ``language``, and ``unsure_language`` where the score is below `min_score`.

    :param languages: ISO 639-1 codes that stay; empty for all.
    :param min_score: probability of the language, 0 to 1.
    :raises UsageError: py3langid doesn't know one of the languages.
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
            raise UsageError(
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
    :raises UsageError: neither bound nor labels are given.
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
            raise UsageError(f"threshold: none is given for {column!r}; set least, most or labels.")
        self.name = name or f"{column}_threshold"
        self._column, self._least, self._most = column, least, most
        self._labels = None if labels is None else frozenset(labels)

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        require(batch.schema.names, [self._column], "column")
        column = batch.column(self._column)
        if (self._least is not None or self._most is not None) and not (
            pa.types.is_integer(column.type)
            or pa.types.is_floating(column.type)
            or pa.types.is_null(column.type)
        ):
            raise UsageError(
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
