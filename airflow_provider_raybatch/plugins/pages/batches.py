# SPDX-License-Identifier: Apache-2.0
"""The batches of a user: states, counts and cost."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from urllib.parse import quote

from airflow_provider_raybatch.contract.batch_api.ids import TASK_ID
from airflow_provider_raybatch.contract.batch_api.states import BatchState, Status
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.links.report import PREFIX, report_path
from airflow_provider_raybatch.plugins.pages.frame import Frame
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.elements import (
    Content,
    document,
    node,
    number,
    section,
    table,
    words_of,
)

_HEADS = (
    "Created (UTC)", "Batch", "Model", "State", "Requests", "Completed", "Failed", "Tokens", "Cost",
    "Window ends", "Files",
)  # fmt: skip
_CLASSES: dict[Status, str] = {"completed": "good", "failed": "bad", "expired": "bad"}


def batches_page(user: str, states: Sequence[BatchState], total: int, frame: Frame) -> str:
    """The page.

    :param user: whose batches these are, for people.
    :param states: newest first.
    :param total: how many batches the user has.
    """
    title = "Your batches"
    header = node(
        "header",
        node("h1", title),
        node("p", "Handed in through the Batch API by ", words_of(user), class_="dim"),
    )
    if not states:
        said = "There are none yet. Clients hand them in at /raybatch/v1 of this server."
        return document(title, header, node("p", said, class_="state"))
    shown = table(count_of(len(states), "batch", "batches"), _HEADS, [_row(state, frame) for state in states])
    left = total - len(states)
    older = f"The newest {len(states):,} of {total:,}; clients list the others." if left > 0 else None
    costs = _costs(states)
    return document(
        title,
        header,
        node("p", older, class_="dim") if older else None,
        section("batches", "Newest first", shown),
        node("p", f"Together they cost {costs}.", class_="dim") if costs else None,
    )


def _row(state: BatchState, frame: Frame) -> tuple[Content, ...]:
    record, counts, ended = state.record, state.counts, state.ended
    run = f"/dags/{quote(record.dag_id, safe='')}/runs/{quote(record.id, safe='')}"
    tokens = None if ended is None else ended.usage.input_tokens + ended.usage.output_tokens
    cost = None if ended is None or ended.cost is None else words.money(ended.cost, ended.currency)
    return (
        _time(record.created_at),
        frame.link(run, words_of(record.id)),
        words_of(record.model),
        _state(state),
        number(words.count(counts.total or record.input_lines)),
        number(words.count(counts.completed)),
        number(words.count(counts.failed), "bad" if counts.failed else ""),
        number("" if not tokens else words.count(tokens)),
        number(cost or ""),
        _time(record.expires_at),
        _files(state, frame),
    )


def _files(state: BatchState, frame: Frame) -> Content:
    """Links to the pages of the dataset that its files are parts of."""
    record, ended = state.record, state.ended
    if ended is None:
        return None
    places = {"dataset": ("output", ended.output_file_id), "failed": ("errors", ended.error_file_id)}
    return [
        [frame.link(PREFIX + report_path(record.dag_id, record.id, TASK_ID, page=page), name), " "]
        for page, (name, file_id) in places.items()
        if file_id is not None
    ]


def _state(state: BatchState) -> Content:
    word = "queued" if state.status == "validating" else state.status.replace("_", " ")
    said = node("span", word, class_=_CLASSES.get(state.status, "dim"))
    decided = state.ended or state.outcome
    errors = decided.errors if decided is not None else []
    return [said, ": ", words_of(errors[0].message)] if errors else said


def _costs(states: Sequence[BatchState]) -> str:
    """What is known of the cost, by currency."""
    sums: dict[str | None, float] = {}
    for state in states:
        if state.ended is not None and state.ended.cost:
            sums[state.ended.currency] = sums.get(state.ended.currency, 0.0) + state.ended.cost
    return " and ".join(words.money(cost, currency) for currency, cost in sums.items())


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M")
