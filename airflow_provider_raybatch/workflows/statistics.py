# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals of a metric, and paired tests of two candidates. The unit is the question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from airflow_provider_raybatch.dataset.errors import UsageError

_LEVEL = 0.95
_RESAMPLES = 4999
_CELLS = 4_000_000
"""Numbers that a bootstrap holds at a time, which bounds its memory."""
_MOST_RESAMPLED = 5000
"""Above this number of values Student's t is accurate enough, and a bootstrap would be slow."""
_SEED = 20_260_101

Values: TypeAlias = Sequence[float] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A confidence interval of 95 %.

    :param estimate: the metric.
    :param count: questions.
    """

    estimate: float
    low: float
    high: float
    count: int
    method: str

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Comparison:
    """Candidate compared with baseline, over the questions that both answered.

    :param difference: candidate minus baseline.
    :param p_value: of a two-sided test against no difference.
    :param test: ``mcnemar`` (exact) or ``permutation`` (of signs).
    :param wins: questions on which the candidate is better; with `losses` and `ties` all questions.
    """

    difference: Interval
    p_value: float
    test: str
    wins: int
    losses: int
    ties: int


def proportion_interval(successes: int, count: int) -> Interval:
    """Wilson's interval of a proportion, such as exact match.

    :raises UsageError: there are no questions, or more successes than questions.
    """
    _check(count)
    if not 0 <= successes <= count:
        raise UsageError(f"successes: {successes} is not between 0 and {count}.")
    found = stats.binomtest(successes, count).proportion_ci(_LEVEL, "wilson")
    return Interval(successes / count, float(found.low), float(found.high), count, "wilson")


def mean_interval(values: Values) -> Interval:
    """Interval of a mean of scores between 0 and 1, such as F1 or pass@k.

    Scores of 0 and 1 only: Wilson. Up to 5,000 values: bootstrap (BCa, with a fixed seed). More values:
    Student's t. Equal values have no spread for a bootstrap: exact, as if each question were passed or
    failed.

    :raises UsageError: there are no values, or one is not finite.
    """
    data = _array(values)
    _check(len(data))
    if _is_binary(data):
        return proportion_interval(int(data.sum()), len(data))
    estimate = float(data.mean())
    if np.ptp(data) == 0:
        bound = _least_share(len(data))
        low, high = estimate * bound, 1 - (1 - estimate) * bound
        return Interval(estimate, low, high, len(data), "constant")
    low, high, method = _of_mean(data)
    if data.min() >= 0 and data.max() <= 1:
        low, high = max(0.0, low), min(1.0, high)
    return Interval(estimate, low, high, len(data), method)


def compare(candidate: Mapping[str, float], baseline: Mapping[str, float]) -> Comparison:
    """A paired comparison by question.

    If all scores are 0 or 1: McNemar's exact test, and Bonett and Price's interval (2012) of the difference.
    Else a permutation test of the signs, and a bootstrap of the differences.

    :param candidate: score by question, as `baseline`.
    :raises UsageError: the two have different questions, or none in common.
    """
    if set(candidate) != set(baseline):
        odd = sorted(set(candidate) ^ set(baseline))
        raise UsageError(
            f"questions: {len(odd):,} of them have no score from both, such as {odd[0]!r}; a candidate with "
            "failed rows is incomplete, so run it again, or compare the common questions on purpose."
        )
    keys = sorted(candidate)
    ours, theirs = _array([candidate[key] for key in keys]), _array([baseline[key] for key in keys])
    _check(len(keys))
    differences = ours - theirs
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    ties = len(keys) - wins - losses
    if _is_binary(ours) and _is_binary(theirs):
        interval = _paired_proportions(wins, losses, len(keys))
        return Comparison(interval, mcnemar(wins, losses), "mcnemar", wins, losses, ties)
    return Comparison(_difference(differences), permutation(differences), "permutation", wins, losses, ties)


def mcnemar(wins: int, losses: int) -> float:
    """Two-sided p-value of McNemar's exact test (a sign test), from what only one of the two won."""
    return 1.0 if wins + losses == 0 else float(stats.binomtest(wins, wins + losses).pvalue)


def permutation(differences: Values) -> float:
    """Two-sided p-value of the mean difference, by random signs with a fixed seed; exact for few questions.

    Above 5,000 differences Student's paired t-test, which gives the same there.
    """
    data = _array(differences)
    data = data[data != 0]
    if len(data) < 2:
        return 1.0  # one difference is as far from 0 with either sign, and SciPy wants two
    if len(data) > _MOST_RESAMPLED:
        return float(stats.ttest_1samp(_array(differences), 0).pvalue)
    found = stats.permutation_test(
        (data,),
        lambda sample, axis: sample.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_RESAMPLES,
        batch=max(1, _CELLS // len(data)),
        rng=np.random.default_rng(_SEED),
    )
    return float(found.pvalue)


def _difference(differences: npt.NDArray[np.float64]) -> Interval:
    estimate, count = float(differences.mean()), len(differences)
    if np.ptp(differences) == 0:
        # If all questions are ties, the data say only that a difference is rare.
        bound = 1 - _least_share(count)
        return Interval(estimate, max(-1.0, estimate - bound), min(1.0, estimate + bound), count, "constant")
    low, high, method = _of_mean(differences)
    return Interval(estimate, low, high, count, method)


def _least_share(count: int) -> float:
    """Lower end of Clopper and Pearson's interval where all of so many have succeeded."""
    return float(stats.binomtest(count, count).proportion_ci(_LEVEL, "exact").low)


def _of_mean(data: npt.NDArray[np.float64]) -> tuple[float, float, str]:
    if len(data) > _MOST_RESAMPLED or len(data) < 3:
        found = stats.ttest_1samp(data, 0).confidence_interval(_LEVEL)
        return float(found.low), float(found.high), "t"
    found = stats.bootstrap(
        (data,),
        np.mean,
        vectorized=True,
        confidence_level=_LEVEL,
        n_resamples=_RESAMPLES,
        batch=max(1, _CELLS // len(data)),
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(found.low), float(found.high), "bootstrap"


def _paired_proportions(wins: int, losses: int, count: int) -> Interval:
    """Bonett and Price 2012: Wald interval of paired proportions, with a win, a loss and two ties added."""
    better, worse = (wins + 1) / (count + 2), (losses + 1) / (count + 2)
    centre = better - worse
    half = float(stats.norm.ppf(0.5 + _LEVEL / 2)) * math.sqrt((better + worse - centre**2) / (count + 2))
    estimate = (wins - losses) / count
    low, high = max(-1.0, centre - half), min(1.0, centre + half)
    return Interval(estimate, min(low, estimate), max(high, estimate), count, "bonett-price")


def _array(values: Values) -> npt.NDArray[np.float64]:
    data = np.asarray(values, dtype=np.float64)
    if not np.isfinite(data).all():
        raise UsageError("values: one of them is not a finite number; leave out questions without a score.")
    return data


def _is_binary(data: npt.NDArray[np.float64]) -> bool:
    return bool(np.isin(data, (0.0, 1.0)).all())


def _check(count: int) -> None:
    if count < 1:
        raise UsageError(
            "values: there are no questions, so there is no metric; check that the run has rows."
        )
