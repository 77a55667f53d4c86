# SPDX-License-Identifier: Apache-2.0
"""Rows and tokens left after each step, and the rules that dropped the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset import Result
from airflow_provider_raybatch.report.markdown import markdown_table
from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.rows import Rows


@dataclass
class FunnelStep:
    """Rows left after one step.

    :param tokens: of these rows; ``None`` where no column counts tokens.
    :param dropped: rows by the rule that dropped them.
    """

    name: str
    rows: int = 0
    tokens: int | None = None
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass
class Funnel:
    """Steps in order; the first one is the input, which drops nothing."""

    steps: list[FunnelStep] = field(default_factory=list)

    @classmethod
    def of_run(cls, name: str, result: Result, aws_conn_id: str | None = None) -> Funnel:
        """The rows of a batch inference, and those that it has answered.

        :param name: of the second step. Its rules are where rows failed, such as ``engine``, and with `steps`
            ``draft.engine``.
        :param result: what the operator returned.
        :raises WorkflowError: `result` has no manifest of a batch inference that can be read.
        """
        (manifest,) = Rows(result, aws_conn_id=aws_conn_id).manifests
        if not isinstance(manifest, BatchManifest):
            raise WorkflowError(
                f"result: {manifest.manifest_uri!r} is not of a batch inference; give what its task returned."
            )
        counts = manifest.counts
        answered = FunnelStep(name, counts.ok, dropped=Counter(counts.errors_by_step))
        return cls([FunnelStep("input", counts.input), answered])

    @property
    def left(self) -> int:
        """Rows after the last step."""
        return self.steps[-1].rows if self.steps else 0

    def joined(self, later: Funnel) -> Funnel:
        """This funnel followed by the steps of another one, without the input of the other."""
        return Funnel([*self.steps, *later.steps[1:]])

    def as_json(self) -> list[dict[str, Any]]:
        """For a card or an XCom."""
        return [
            {"step": one.name, "rows": one.rows, "tokens": one.tokens, "dropped": dict(one.dropped)}
            for one in self.steps
        ]

    @classmethod
    def from_json(cls, steps: list[dict[str, Any]]) -> Funnel:
        """The inverse of :meth:`as_json`."""
        return cls([
            FunnelStep(one["step"], one["rows"], one["tokens"], Counter(one["dropped"])) for one in steps
        ])

    def as_markdown(self) -> str:
        """A table: step, rows left, share of the input, tokens left, rows dropped by rule."""
        first = self.steps[0].rows if self.steps else 0
        rows = []
        for one in self.steps:
            share = f"{one.rows / first:.1%}" if first else "-"
            tokens = "-" if one.tokens is None else f"{one.tokens:,}"
            rules = ", ".join(f"{rule}: {count:,}" for rule, count in one.dropped.most_common()) or "-"
            rows.append([one.name, one.rows, share, tokens, rules])
        return markdown_table(["step", "rows left", "of input", "tokens left", "dropped"], rows)
