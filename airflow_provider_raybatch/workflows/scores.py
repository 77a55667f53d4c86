# SPDX-License-Identifier: Apache-2.0
"""Scores of one answer against the known one: exact match, F1, numeric equality, pass@k."""

from __future__ import annotations

import re
import string
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.rows import require
from airflow_provider_raybatch.workflows.sift import text_column

Score = Callable[[str, str], float]
"""Score of a prediction, given the known answer: 0 to 1."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d{1,40})(\.\d{1,40})?(\s*/\s*\d{1,40})?")
_ENDLESS = re.compile(r"(\^|\*\*)\s*[{(]*\s*\w+\s*(\^|\*\*)|(\^|\*\*)\s*[{(]*\s*\d{4,}|\d{4,}\s*!")
"""Towers of powers and large factorials, which would take hours and all memory to evaluate."""
_LONGEST_EXPRESSION = 4000
_SECONDS = 5


def normalized(text: str) -> str:
    """As SQuAD compares answers: lower case, without punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1 if both are equal after :func:`normalized`, else 0."""
    return float(normalized(prediction) == normalized(answer))


def f1(prediction: str, answer: str) -> float:
    """Harmonic mean of precision and recall over the words after :func:`normalized`, as in SQuAD."""
    said, known = normalized(prediction).split(), normalized(answer).split()
    if not said or not known:
        return float(said == known)
    shared = sum((Counter(said) & Counter(known)).values())
    return 2 * shared / (len(said) + len(known))


def numeric_equal(prediction: str, answer: str) -> float:
    """1 if both are the same number or expression, else 0.

    Plain numbers are compared by value, other expressions by math-verify. Only the last 4,000 characters of a
    prediction count. math-verify's own limit of five seconds per expression only works in the main thread.
    """
    said, known = _number(prediction), _number(answer)
    if said is not None and known is not None:
        return float(said == known)
    if _ENDLESS.search(prediction) or _ENDLESS.search(answer):
        return exact_match(prediction, answer)
    from math_verify import parse, verify

    seconds = _SECONDS if threading.current_thread() is threading.main_thread() else None
    tail = prediction[-_LONGEST_EXPRESSION:]
    gold = parse(answer[-_LONGEST_EXPRESSION:], parsing_timeout=seconds)
    return float(verify(gold, parse(tail, parsing_timeout=seconds), timeout_seconds=seconds))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is correct (Chen et al. 2021).

    :raises UsageError: k is not between 1 and `samples`, or `correct` not between 0 and `samples`.
    """
    if not 1 <= k <= samples:
        raise UsageError(f"k: pass@{k} needs at least {k} samples a question, and there are {samples}.")
    if not 0 <= correct <= samples:
        raise UsageError(f"correct: {correct} is not between 0 and the {samples} samples.")
    if samples - correct < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(samples - correct + 1, samples + 1)))


@dataclass(frozen=True)
class QuestionScores:
    """Scores of the samples of one question."""

    key: str
    samples: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean score of the samples."""
        return sum(self.samples) / len(self.samples)

    def passes(self, k: int) -> float:
        """pass@k; a sample with score 1 is correct."""
        return pass_at_k(len(self.samples), sum(one >= 1 for one in self.samples), k)


def score_answers(
    batches: Iterable[pa.RecordBatch],
    score: Score,
    key: str,
    answer: str = "answer",
    response: str = "response",
    completions: str | None = None,
) -> Iterator[QuestionScores]:
    """Score each row of a batch inference over a benchmark.

    :param key: column that names the question, by which candidates are compared.
    :param answer: column of the known answer.
    :param completions: column of all samples, ``completions`` for `n` > 1; by default `response` is the only
        sample.
    :raises UsageError: a column is missing, or a question has no known answer.
    """
    for batch in batches:
        for name in filter(None, (key, answer, completions)):
            require(batch.schema.names, [name], "column")
        keys = batch.column(key).to_pylist()
        known = _answers(batch, answer, keys)
        said = (
            [[text] for text in text_column(batch, response)]
            if completions is None
            else [_texts(one) for one in batch.column(completions).to_pylist()]
        )
        for name, right, texts in zip(keys, known, said, strict=True):
            yield QuestionScores(str(name), tuple(score(text or "", right) for text in texts or [""]))


def column_scores(batches: Iterable[pa.RecordBatch], column: str, key: str) -> Iterator[QuestionScores]:
    """Numbers that a job has made as scores: those of a reward model, or the mean log probability of a text.

    :param column: such as ``score`` or ``prompt_mean_logprob``.
    :param key: column that names the row, by which candidates are compared.
    :raises UsageError: a column is missing, or a row has no finite number.
    """
    for batch in batches:
        for name in (column, key):
            require(batch.schema.names, [name], "column")
        names, values = batch.column(key).to_pylist(), batch.column(column).to_pylist()
        for name, value in zip(names, values, strict=True):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
                raise UsageError(
                    f"column: {column!r} of row {name!r} is {value!r} and no finite number; drop such rows "
                    "before."
                )
            yield QuestionScores(str(name), (float(value),))


def _answers(batch: pa.RecordBatch, column: str, keys: list[Any]) -> list[str]:
    values = batch.column(column).to_pylist()
    for key, value in zip(keys, values, strict=True):
        if value is None or not str(value).strip():
            raise UsageError(
                f"{column}: question {key!r} has no known answer; add it to the benchmark or remove the "
                "question."
            )
    return [str(value) for value in values]


def _texts(completions: Any) -> list[str | None]:
    return [one["text"] if isinstance(one, dict) else one for one in completions or []]


def _number(text: str) -> Fraction | None:
    stripped = text.strip().removesuffix(".").strip("$ ")
    if not _NUMBER.fullmatch(stripped):
        return None
    above, _, below = stripped.replace(",", "").partition("/")
    divisor = Fraction(below.strip() or 1)
    return Fraction(above.strip()) / divisor if divisor else None
