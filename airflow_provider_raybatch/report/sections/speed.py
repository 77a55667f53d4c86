# SPDX-License-Identifier: Apache-2.0
"""How fast was it: the course of the job, its start-up, replicas and GPUs."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from airflow_provider_raybatch.contract.manifest import ReplicaStats
from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.comparison import Figure, Figures
from airflow_provider_raybatch.report.elements import (
    Content,
    folded,
    node,
    number,
    section,
    side_by_side,
    table,
    words_of,
)
from airflow_provider_raybatch.report.plots import line_plot, stacked
from airflow_provider_raybatch.report.sections.figures import figure_table

PHASES = {
    "source": "Source: listing, rows, ids",
    "prompt": "First prompts",
    "nodes": "Wait for nodes",
    "model": "Check of the model",
    "earlier": "Search for earlier answers",
    "claim": "Claim of the destination",
    "replica": "Start of replicas",
    "import": "Import of the engine",
    "engine": "Start of the engine",
    "rows": "First rows",
}
"""Of `timing.phases`."""
_MOST_REPLICAS = 8
_HEADS = ("Replica", "Node", "GPUs", "Rows", "Generated tokens", "Start", "Ended after", "GPU busy")


def speed(report: Report, shown: Figures) -> Element | None:
    """The section, ``None`` where no time is known."""
    timing = report.timing
    if not (report.state == "committed" or report.course or timing.phases):
        return None
    picked = [shown.seconds, shown.tokens_per_second]
    if timing.rows_per_second:
        picked.append(Figure("Rows a second", words.rate(timing.rows_per_second)))
    if timing.generation_seconds:
        picked.append(
            Figure("From the first request to the last answer", words.seconds(timing.generation_seconds))
        )
        picked.append(Figure("Writing the dataset", words.seconds(timing.commit_seconds)))
    return section(
        "speed",
        "How fast was it?",
        side_by_side(figure_table("Time", picked), _phases(report)),
        _course(report),
        _replicas(report.replicas),
    )


def _course(report: Report) -> Element | None:
    course = report.course
    if not course:
        return None
    tokens = [(one.seconds, one.tokens_per_second) for one in course]
    in_flight = [(one.seconds, one.rows_in_flight) for one in course]
    done = [(one.seconds, one.rows) for one in course]
    replicas = [(one.seconds, one.replicas) for one in course]
    return node(
        "div",
        line_plot("Tokens a second", "prompt and generated", tokens),
        line_plot("Rows in flight", "rows in engines", in_flight, whole=True),
        line_plot("Rows done", "rows", done, whole=True),
        line_plot("Replicas", "with a ready engine", replicas, whole=True),
        class_="plots",
    )


def _phases(report: Report) -> Element | None:
    phases = [
        (PHASES.get(name, name), value)
        for name, value in report.timing.phases.items()
        if words.known(value) and value > 0
    ]
    if not phases:
        return None
    total = report.timing.startup_seconds or sum(value for _, value in phases)
    return stacked(f"Until the first request: {words.seconds(total)}", ("Phase", "Time"), phases)


def _replicas(replicas: list[ReplicaStats]) -> Element | None:
    if not replicas:
        return None
    title = count_of(len(replicas), "replica")
    whole = table(title, _HEADS, [_replica(one) for one in replicas])
    return folded(title, whole) if len(replicas) > _MOST_REPLICAS else whole


def _replica(one: ReplicaStats) -> tuple[Content, ...]:
    busy = "unknown" if one.gpu_utilization is None else f"{one.gpu_utilization:.0f} %"
    if one.gpu_utilization is not None and one.gpu_share is not None:
        busy += " (all engines on it)"
    return (
        words_of(one.replica),
        words_of(one.node or words.UNKNOWN),
        words_of((", ".join(one.gpus) or "none known") + _share(one)),
        number(words.count(one.rows)),
        number(words.count(one.output_tokens)),
        number(words.seconds(one.startup_seconds)),
        number(words.seconds(one.ended_seconds)),
        number(busy),
    )


def _share(one: ReplicaStats) -> str:
    return "" if one.gpu_share is None else f" ({one.gpu_share:g} of it)"
