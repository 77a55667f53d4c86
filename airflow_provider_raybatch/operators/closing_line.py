# SPDX-License-Identifier: Apache-2.0
"""The last line in the log of a batch inference that ended well: what it delivered, and the run before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.base import in_words
from airflow_provider_raybatch.contract.text import clean, count_of, cut_to, money_of
from airflow_provider_raybatch.operators.handover import last_run_before

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.contract.manifest import Summary

_LONGEST_FAILURE = 160
_MOST_STEPS = 6


def closing_line(figures: Mapping[str, Any], last_run: Mapping[str, Any] | None = None) -> str:
    """One line, such as ``300 rows ok, 88 resumed, 2,122 tokens generated, 3 min 5 s | last run: 301 ok``.

    :param figures: fields of :class:`~airflow_provider_raybatch.contract.manifest.Summary`. What is zero or
        unknown is left out.
    :param last_run: `rows`, `errors`, `seconds` and `cost` of the run before.
    """
    chunks = figures.get("chunks")
    ok = f"{count_of(figures['rows'], 'row')} ok"
    told = [ok if chunks is None else f"{ok} ({count_of(chunks, 'chunk')})", *_failed(figures)]
    told += _steps(figures)
    told += [f"{n:,} {name}" for name in ("resumed", "reused", "duplicates") if (n := figures.get(name))]
    if (generated := figures.get("tokens_generated")) is not None:
        told.append(f"{count_of(generated, 'token')} generated{_reasoning(figures)}")
    line = ", ".join([*told, *_seconds(figures), *_cost(figures)])
    if last_run is None:
        return line
    before = [f"{last_run['rows']:,} ok", *_failed(last_run), *_seconds(last_run), *_cost(last_run)]
    return f"{line} | last run: {', '.join(before)}"


def closing_line_of(context: Context, result: Mapping[str, Any], summary: Summary | None) -> str:
    """The line of a task that returns `result`.

    :param summary: of the job; ``None`` where an earlier attempt returned the result.
    """
    figures = result if summary is None else summary.model_dump()
    return closing_line(figures, figures.get("last_run") or _numbers_before(context))


def _numbers_before(context: Context) -> Mapping[str, Any] | None:
    before = last_run_before(context)  # whatever an XCom has in it, a job that is done does not fail
    return None if before is None else before.model_dump()


def failed_rows(result: Mapping[str, Any]) -> str:
    """How many rows failed, and where their dead letters are."""
    return (
        f"{failed_by_itself(result):,} of {count_of(result['rows'] + result['errors'], 'row')} failed; the "
        f"dead letters with the reasons are at {result['dead_letter_uri']}."
    )


def failed_by_itself(figures: Mapping[str, Any]) -> int:
    """How many rows failed, without those that were not asked before their batch ended."""
    return int(figures.get("errors") or 0) - int(figures.get("unanswered") or 0)


def _failed(figures: Mapping[str, Any]) -> list[str]:
    told = []
    if failed := failed_by_itself(figures):
        why = " ".join(clean(figures.get("main_failure") or "").split())
        told.append(f"{failed:,} failed" + (f" ({cut_to(_LONGEST_FAILURE, why)})" if why else ""))
    if unanswered := figures.get("unanswered"):
        told.append(f"{unanswered:,} not asked before the batch ended")
    return told


def _steps(figures: Mapping[str, Any]) -> list[str]:
    """How many rows each step asked about; nothing where they are too many for a line."""
    steps = figures.get("steps") or []
    if not 0 < len(steps) <= _MOST_STEPS:
        return []
    told = [
        f"{one['name']} {one['asked']:,}" + (f" ({one['rejected']:,} rejected)" if one["rejected"] else "")
        for one in steps
    ]
    return [f"asked: {' -> '.join(told)}"]


def _reasoning(figures: Mapping[str, Any]) -> str:
    """How many of the generated tokens came before the answers; nothing where others are delivered, too."""
    tokens = figures.get("tokens") or {}
    told = tokens.get("reasoning") and tokens["output"] == figures["tokens_generated"]
    return f" ({tokens['reasoning']:,} of reasoning)" if told else ""


def _seconds(figures: Mapping[str, Any]) -> list[str]:
    return [in_words(figures["seconds"])] if isinstance(figures.get("seconds"), int | float) else []


def _cost(figures: Mapping[str, Any]) -> list[str]:
    cost, currency = figures.get("cost"), figures.get("currency")
    return [money_of(cost, str(currency))] if isinstance(cost, int | float) and cost and currency else []
