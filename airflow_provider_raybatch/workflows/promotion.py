# SPDX-License-Identifier: Apache-2.0
"""Decide by a rule whether a candidate replaces the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.workflows.statistics import Comparison, Interval, compare, mean_interval

Scores: TypeAlias = Mapping[str, Mapping[str, float]]
"""By metric and question."""


@dataclass(frozen=True)
class Candidate:
    """The metrics of one model.

    :param metrics: intervals by name of the metric; empty for a failed candidate.
    :param against_baseline: paired comparisons by name of the metric; empty for the baseline itself.
    :param failure: why metrics are missing; such a candidate is never promoted.
    """

    name: str
    metrics: Mapping[str, Interval] = field(default_factory=dict)
    against_baseline: Mapping[str, Comparison] = field(default_factory=dict)
    failure: str | None = None

    @classmethod
    def of(cls, name: str, scores: Scores, questions: int, baseline: Scores | None = None) -> Candidate:
        """The metrics of a candidate, from its scores.

        :param scores: by metric and question; empty for a failed candidate.
        :param questions: number of questions in the benchmark; a candidate with fewer scores has failed.
        :param baseline: scores of the baseline; ``None`` for the baseline itself. Metrics for which its
            scores are incomplete are not compared.
        :raises WorkflowError: a score is not finite, or the two answered different questions.
        """
        answered = min((len(by_key) for by_key in scores.values()), default=0)
        whole = answered == questions
        return cls(
            name,
            {metric: mean_interval(list(by_key.values())) for metric, by_key in scores.items() if by_key},
            {
                metric: compare(by_key, baseline[metric])
                for metric, by_key in scores.items()
                if whole and baseline is not None and len(baseline.get(metric, ())) == questions
            },
            None if whole else f"it answered {answered:,} of {count_of(questions, 'question')}",
        )


@dataclass(frozen=True)
class Rule:
    """When a candidate replaces the baseline.

    :param metric: the metric that decides.
    :param least_gain: required difference to the baseline.
    :param alpha: largest two-sided p-value of the paired test. It is divided by the number of compared
        candidates (Bonferroni), so that more candidates don't make a promotion by chance more likely.
    """

    metric: str
    least_gain: float = 0.0
    alpha: float = 0.05


@dataclass(frozen=True)
class Decision:
    """The outcome of a rule.

    :param promoted: name of the candidate; ``None`` to keep the baseline.
    :param reason: one sentence.
    """

    promoted: str | None
    reason: str


def decide(baseline: str, candidates: Sequence[Candidate], rule: Rule) -> Decision:
    """Promote the best candidate that passes the rule, or keep the baseline.

    :param candidates: with or without the baseline itself.
    """
    others = [one for one in candidates if one.name != baseline]
    compared = sum(one.failure is None and rule.metric in one.against_baseline for one in others)
    alpha = rule.alpha / max(1, compared)
    reasons = [_why_not(one, rule, alpha) for one in others]
    passed = [one for one, reason in zip(others, reasons, strict=True) if reason is None]
    if not passed:
        return Decision(
            None, f"Hold {baseline}: {'; '.join(filter(None, reasons)) or 'there is no candidate'}."
        )
    best = max(passed, key=lambda one: one.against_baseline[rule.metric].difference.estimate)
    found = best.against_baseline[rule.metric]
    return Decision(
        best.name,
        f"Promote {best.name}: its {rule.metric} is {found.difference.estimate:+.3f} above {baseline}'s "
        f"(p = {found.p_value:.2g}, at most {alpha:.2g}).",
    )


def _why_not(one: Candidate, rule: Rule, alpha: float) -> str | None:
    if one.failure is not None:
        return f"{one.name} failed ({one.failure})"
    found = one.against_baseline.get(rule.metric)
    if found is None:
        return f"{one.name} was not compared by {rule.metric}"
    gain = found.difference.estimate
    if gain <= 0 or gain < rule.least_gain:
        needed = f"at least {rule.least_gain:+.3f}" if rule.least_gain > 0 else "more than 0"
        return f"the difference of {one.name} is {gain:+.3f}, and {needed} is needed"
    if found.p_value > alpha:
        return f"the difference of {one.name} may be chance (p = {found.p_value:.2g}, more than {alpha:.2g})"
    return None
