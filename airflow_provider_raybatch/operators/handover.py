# SPDX-License-Identifier: Apache-2.0
"""What a batch inference returns, the same facts for its outlets' events, and those of the DAG run before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, TaskInstanceState
from airflow.sdk.definitions.asset import AssetRef

from airflow_provider_raybatch.contract.layout import MANIFESTS
from airflow_provider_raybatch.contract.location import s3_prefix
from airflow_provider_raybatch.contract.run_numbers import LastRun, numbers_in

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
