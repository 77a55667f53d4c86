# SPDX-License-Identifier: Apache-2.0
"""What a batch inference returns, emits as asset event, and logs as its last line beside the run before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, TaskInstanceState
from airflow.sdk.definitions.asset import AssetRef

from airflow_provider_raybatch.contract.base import in_words
from airflow_provider_raybatch.contract.layout import MANIFESTS
from airflow_provider_raybatch.contract.location import s3_prefix
from airflow_provider_raybatch.contract.run_numbers import LastRun, numbers_in
from airflow_provider_raybatch.contract.text import clean, count_of, cut_to, money_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo
    from airflow_provider_raybatch.contract.manifest import Summary

_FIRST = ("rows", "errors", "tokens", "seconds", "cost", "currency")
_ONLY_IN_THE_LOG = {"output_tokens_per_second", "main_failure", "last_run"}
_PATHS = ("uri", "bucket", "key_prefix", "manifest_uri", "report_uri", "dead_letter_uri")


def result_of(summary: Summary, submission_id: str, dashboard_url: str | None) -> dict[str, Any]:
    """The task's return value.

    :return: `rows`, `errors`, `tokens` (`input`, `cached`, `output`, `filled`, `reasoning`) of the delivered
        rows, `seconds`, `cost` and its `currency`; `format`, of the rows `resumed`, `reused` and
        `duplicates`, `chunks` (rows of the dataset, where `chunk_tokens` cut texts), `tokens_paid`,
        `tokens_saved`, `tokens_generated`, `gpu_seconds`, `savings`, `submission_id`, `dashboard_url`; `uri`
        (the committed, immutable folder), for S3 also `bucket` and `key_prefix` (which ends with a slash, so
        that no other folder begins with it), `manifest_uri`, `report_uri`, `dead_letter_uri`.
        Where a batch of the Batch API ended early, `unanswered`: errors whose lines were not asked before.
        Where several steps asked about each row, `steps`: the counts of each, as in the manifest.
    """
    left_out = {*_ONLY_IN_THE_LOG} if summary.unanswered else {*_ONLY_IN_THE_LOG, "unanswered"}
    left_out |= {"steps"} if summary.steps is None else set()
    facts = {
        **summary.model_dump(exclude=left_out),
        **s3_prefix(summary.uri),
        "submission_id": submission_id,
        "dashboard_url": dashboard_url,
    }
    between = [name for name in facts if name not in (*_FIRST, *_PATHS)]
    return {name: facts[name] for name in (*_FIRST, *between, *_PATHS) if name in facts}


def publish_asset_events(context: Context, outlets: list[Any], result: Mapping[str, Any]) -> None:
    """Put manifest and counts into `extra` of each outlet's event.

    An :class:`~airflow.sdk.AssetAlias` gets an event of the asset with the destination's URI.
    """
    left_out = {"bucket", "key_prefix", "dashboard_url"}
    extra = {name: value for name, value in result.items() if name not in left_out}
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            destination = str(result["manifest_uri"]).rpartition(f"/{MANIFESTS}/")[0]
            context["outlet_events"][outlet].add(Asset(uri=destination), extra=extra)
        elif isinstance(outlet, (Asset, AssetRef)):
            context["outlet_events"][outlet].extra.update(extra)


async def has_committed(client: RayJobsClient, info: JobInfo, key: str) -> bool:
    """Whether the log of a job that has ended names its dataset; else the next job finds it in seconds."""
    from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
    from airflow_provider_raybatch.contract.events import Committed, read_line

    try:
        found = (read_line(line, key) for line in (await client.log_tail(info)).lines)
        return any(one is not None and isinstance(one.event, Committed) for one in found)
    except ClusterError:
        return False


def result_before(context: Context) -> Mapping[str, Any] | None:
    """What the task returned in the DAG run before, ``None`` if that can't be known.

    Where each run has its own destination, the job can't tell.
    """
    ti = context["ti"]
    try:
        # Airflow writes an error into the log for an XCom that does not exist.
        index = -1 if ti.map_index is None else ti.map_index
        before = ti.get_previous_ti(state=TaskInstanceState.SUCCESS, map_index=index)
        if before is None:
            return None
        found = ti.xcom_pull(run_id=before.run_id, map_indexes=index)
    except Exception:
        return None  # it is one figure in one line
    known = isinstance(found, Mapping) and all(isinstance(found.get(key), int) for key in ("rows", "errors"))
    return found if known else None


def last_run_before(context: Context) -> LastRun | None:
    """The numbers of :func:`result_before`."""
    found = result_before(context)
    return None if found is None else numbers_of(found)


def numbers_of(result: Mapping[str, Any]) -> LastRun | None:
    """The numbers of a task's return value, ``None`` where it does not tell its rows."""
    found = numbers_in(result)
    return LastRun(**found) if {"rows", "errors"} <= found.keys() else None


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
        told.append(f"{failed:,} failed" + (f" ({cut_to(why, _LONGEST_FAILURE)})" if why else ""))
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
