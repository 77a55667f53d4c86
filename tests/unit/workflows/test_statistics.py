# SPDX-License-Identifier: Apache-2.0
"""Intervals and tests on simulated data with known truth. All seeds are fixed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.workflows.statistics import (  # noqa: F401 - messages.txt uses them, too
    compare,
    mcnemar,
    mean_interval,
    permutation,
    proportion_interval,
)
from tests.support.approved import AssertSentences

RUNS = 400


def test_intervals_of_skewed_scores_cover() -> None:
    """F1 of 200 questions: many zeros and ones, and some values between."""
    rng, mean, covered, runs = np.random.default_rng(2), 0.6 + 0.2 * (2 / 5), 0, 100
    for _ in range(runs):
        kind = rng.choice(3, 200, p=[0.2, 0.6, 0.2])
        scores = np.where(kind == 2, rng.beta(2, 3, 200), kind.astype(float))
        interval = mean_interval(scores)
        covered += interval.low <= mean <= interval.high
    assert interval.method == "bootstrap"
    assert covered >= 0.93 * runs


def simulated(
    rng: np.random.Generator, gain: float, count: int = 300
) -> tuple[dict[str, float], dict[str, float]]:
    """Return scores of candidate and baseline; both solve hard questions more rarely."""
    ease = rng.beta(2, 1, count)
    base = rng.random(count) < ease
    better = rng.random(count) < np.clip(ease + gain, 0, 1)
    names = [f"q{number}" for number in range(count)]
    return dict(zip(names, better.astype(float), strict=True)), dict(
        zip(names, base.astype(float), strict=True)
    )


def test_mcnemar_holds_its_level_and_finds_a_difference() -> None:
    rng = np.random.default_rng(4)
    same = [compare(*simulated(rng, 0.0)).p_value <= 0.05 for _ in range(RUNS)]
    assert np.mean(same) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / RUNS)
    assert np.mean([compare(*simulated(rng, 0.2)).p_value <= 0.05 for _ in range(100)]) >= 0.95


def test_intervals_of_paired_shares_cover() -> None:
    rng, covered = np.random.default_rng(5), 0
    for _ in range(RUNS):
        difference = compare(*simulated(rng, 0.0)).difference
        covered += difference.low <= 0 <= difference.high
    assert covered >= 0.93 * RUNS


def test_permutation_holds_its_level_and_finds_a_difference() -> None:
    rng = np.random.default_rng(6)
    same = [permutation(rng.beta(1, 2, 60) - rng.beta(1, 2, 60)) <= 0.05 for _ in range(200)]
    assert np.mean(same) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 200)
    assert np.mean([permutation(rng.normal(0.2, 0.4, 60)) <= 0.05 for _ in range(40)]) >= 0.9


def test_mcnemar_is_the_sign_test_of_discordant_questions() -> None:
    assert mcnemar(9, 1) == pytest.approx(stats.binomtest(9, 10).pvalue)
    assert mcnemar(0, 0) == 1.0


def test_tie_is_not_a_difference() -> None:
    scores = {"a": 1.0, "b": 0.0, "c": 1.0}
    tie = compare(scores, scores)
    assert (tie.p_value, tie.wins, tie.losses, tie.ties) == (1.0, 0, 0, 3)
    assert tie.difference.low < 0 < tie.difference.high
    mixed = {"a": 0.5, "b": 0.2}
    assert compare(mixed, mixed).p_value == 1.0


def test_a_single_difference_may_be_chance() -> None:
    scores = dict.fromkeys(map(str, range(40)), 0.25)
    found = compare({**scores, "7": 0.75}, scores)
    assert (found.p_value, found.wins, found.losses, found.ties) == (1.0, 1, 0, 39)
    assert found.difference.low <= found.difference.estimate == 0.5 / 40 <= found.difference.high


def test_all_right_is_not_certain() -> None:
    assert mean_interval([1.0] * 50).low == pytest.approx(0.929, abs=0.001)
    assert mean_interval([0.5] * 50).low < 0.5 < mean_interval([0.5] * 50).high


def test_a_hundred_thousand_questions() -> None:
    values = np.random.default_rng(7).beta(2, 2, 100_000)
    assert mean_interval(values).method == "t"
    assert permutation(values - 0.5) > 0


def test_what_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda made: made, UsageError)
