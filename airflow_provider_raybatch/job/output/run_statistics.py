# SPDX-License-Identifier: Apache-2.0
"""Timing and statistics of a run for the manifest."""

from __future__ import annotations

import time
from collections.abc import Sequence

from airflow_provider_raybatch.contract.manifest import RunStatistics, Timing
from airflow_provider_raybatch.contract.run_numbers import ReplicaStats, StageSeconds
from airflow_provider_raybatch.job.monitor.money import Money
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.monitor.start_up import StartUp
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.run.watch import Ran


def statistics_of(ran: Ran, plan: Plan, start_up: StartUp, money: Money) -> RunStatistics:
    """Timing and statistics of what the replicas did."""
    gpu_seconds = money.gpu_seconds_by_type
    first = min((one.first_request for one in ran.reports if one.first_request), default=0.0)
    generation = max(0.0, ran.last_row - first) if first else 0.0
    rows, tokens = sum(one.rows for one in ran.reports), sum(one.output_tokens for one in ran.reports)
    return RunStatistics(
        timing=Timing(
            preflight_seconds=round(start_up.seconds, 2),
            startup_seconds=round(first - start_up.began, 2) if first else 0.0,
            phases=start_up.phases(ran.reports),
            generation_seconds=round(generation, 2),
            output_tokens_per_second=round(tokens / generation, 1) if generation else 0.0,
            rows_per_second=round(rows / generation, 2) if generation else 0.0,
            total_seconds=round(time.time() - start_up.began, 2),
        ),
        stages=StageSeconds(**{stage: round(spent, 3) for stage, spent in ran.seconds.items()}),
        replicas=replica_stats(ran.reports),
        effective_sampling=dict(ran.engine.effective_sampling),
        plan={**plan.shown(), "engine": dict(ran.engine.sizes)},
        versions=dict(ran.engine.versions),
        gpu_seconds=round(sum(gpu_seconds.values()), 1),
        gpu_seconds_by_type=gpu_seconds,
        gpu_hour_price=money.used_prices,
        cost=money.cost,
        currency=money.prices.currency if money.prices.gpu_hour_price else None,
    )


def replica_stats(reports: Sequence[ReplicaProgress]) -> list[ReplicaStats]:
    """What each replica did."""
    first = min((one.first_request for one in reports if one.first_request), default=0.0)
    return [_stats(one, first) for one in reports]


def _stats(report: ReplicaProgress, first: float) -> ReplicaStats:
    """What a replica did; `first` is when the first request of all was made, in epoch seconds."""
    # Rows that fail before the engine are answered without a request, and nodes' clocks differ.
    began, ended = (
        round(max(0.0, at - first), 2) if at and first else 0.0
        for at in (report.first_request, report.last_answer)
    )
    return ReplicaStats.model_validate(report, from_attributes=True).model_copy(
        update={"began_seconds": began, "ended_seconds": ended}
    )
