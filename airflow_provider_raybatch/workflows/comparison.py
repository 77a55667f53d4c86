# SPDX-License-Identifier: Apache-2.0
"""Compare candidates: a table and a self-contained page; and decide by a rule which one is taken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.writer import folder_to_write
from airflow_provider_raybatch.report.plots import Places, bar
from airflow_provider_raybatch.report.rendering import render
from airflow_provider_raybatch.report.words import markdown_table
from airflow_provider_raybatch.workflows.statistics import Comparison, Interval, compare, mean_interval

Scores: TypeAlias = Mapping[str, Mapping[str, float]]
"""By metric and question."""
_TEMPLATE = Path(__file__).parent / "templates/comparison.jinja"


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
        :raises UsageError: a score is not finite, or the two answered different questions.
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


@dataclass(frozen=True)
class ComparisonReport:
    """Table and page of candidates.

    :param baseline: name of the candidate that the others are compared with.
    :raises UsageError: no candidate has figures.
    """

    title: str
    baseline: str
    candidates: Sequence[Candidate]
    decision: Decision | None = None

    def __post_init__(self) -> None:
        if not any(one.metrics for one in self.candidates):
            failed = "; ".join(f"{one.name}: {one.failure}" for one in self.candidates) or "there are none"
            raise UsageError(f"candidates: none has figures to compare ({failed}).")

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics of all candidates, in order of appearance."""
        return list(dict.fromkeys(name for one in self.candidates for name in one.metrics))

    def rows(self) -> list[list[str]]:
        """The table with its header: metrics with intervals, differences with p-values."""
        head = ["model", *(f"{name} [95 %]" for name in self.metrics)]
        head += [f"{name} against {self.baseline}" for name in self.metrics]
        body = []
        for one in self.candidates:
            cells = [one.name] if one.failure is None else [f"{one.name} (failed: {one.failure})"]
            cells += [str(one.metrics[name]) if name in one.metrics else "-" for name in self.metrics]
            cells += [_compared(one.against_baseline.get(name)) for name in self.metrics]
            body.append(cells)
        return [head, *body]

    def as_markdown(self) -> str:
        """The table, and the decision."""
        head, *body = self.rows()
        return markdown_table(head, body) + (f"\n{self.decision.reason}\n" if self.decision else "")

    def as_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            "title": self.title,
            "baseline": self.baseline,
            "candidates": [asdict(one) for one in self.candidates],
            "decision": asdict(self.decision) if self.decision else None,
        }

    def as_html(self) -> str:
        """One page, which loads nothing: the table, and the intervals of each metric as bars."""
        head, *body = self.rows()
        intervals = [self._intervals(metric) for metric in self.metrics]
        return render(
            _TEMPLATE,
            title=self.title,
            decision=self.decision,
            head=head,
            body=body,
            intervals=intervals,
        )

    def _intervals(self, metric: str) -> tuple[str, str, list[tuple[str, str, Places]]]:
        """A metric, the span of its bars, and name, figure and bar of each candidate.

        Below and above the estimate, a bar has two colours.
        """
        found = {one.name: one.metrics[metric] for one in self.candidates if metric in one.metrics}
        least, most = min(one.low for one in found.values()), max(one.high for one in found.values())
        rows = []
        for name, one in found.items():
            parts = [(one.low - least, "none"), (one.estimate - one.low, "a"), (one.high - one.estimate, "b")]
            rows.append((name, str(one), bar(parts, most - least)))
        return metric, f"{least:.3f} to {most:.3f}", rows

    def write(self, folder: str, name: str = "comparison", aws_conn_id: str | None = None) -> dict[str, str]:
        """Write ``<name>.md``, ``.json`` and ``.html``; each appears whole or not at all.

        :returns: the location of each, such as `html_uri`.
        :raises UsageError: `folder` is not the location of a folder.
        """
        place = folder_to_write(folder, aws_conn_id, "folder")
        contents = {
            "md": self.as_markdown().encode(),
            "json": json.dumps(self.as_json(), ensure_ascii=False, indent=1).encode(),
            "html": self.as_html().encode(),
        }
        for kind, content in contents.items():
            place.write(f"{name}.{kind}", content)
        return {f"{kind}_uri": f"{place.uri}/{name}.{kind}" for kind in contents}


def _compared(found: Comparison | None) -> str:
    if found is None:
        return "-"
    interval = found.difference
    return (
        f"{interval.estimate:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}], p = {found.p_value:.2g}, "
        f"{found.wins} won, {found.losses} lost, {found.ties} tied"
    )
