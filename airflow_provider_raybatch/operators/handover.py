# SPDX-License-Identifier: Apache-2.0
"""What a batch inference hands on: a small dictionary, and the same facts on the outlets' events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

from airflow_provider_raybatch.contract.location import s3_prefix

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.contract.manifest import Summary


def result_of(summary: Summary, submission_id: str, dashboard_url: str | None) -> dict[str, Any]:
    """The task's return value.

    :return: `uri` (the committed, immutable folder), for S3 also `bucket` and `key_prefix` (which ends with a
        slash, so that no other folder begins with it), `manifest_uri`, `dead_letter_uri`, `format`, `rows`,
        of them `resumed`, `reused` and `duplicates`, `errors`, `tokens` (`input`, `cached`, `output`,
        `filled`) of the delivered rows, `tokens_paid`, `tokens_saved`, `gpu_seconds`, `submission_id`,
        `dashboard_url`.
    """
    return {
        "uri": summary.uri,
        **s3_prefix(summary.uri),
        "manifest_uri": summary.manifest_uri,
        "dead_letter_uri": summary.dead_letter_uri,
        "format": summary.format,
        "rows": summary.rows,
        "resumed": summary.resumed,
        "reused": summary.reused,
        "duplicates": summary.duplicates,
        "errors": summary.errors,
        "tokens": summary.tokens.model_dump(),
        "tokens_paid": summary.tokens_paid,
        "tokens_saved": summary.tokens_saved,
        "gpu_seconds": summary.gpu_seconds,
        "submission_id": submission_id,
        "dashboard_url": dashboard_url,
    }


def publish_asset_events(context: Context, outlets: list[Any], result: Mapping[str, Any]) -> None:
    """Put manifest and counts into `extra` of the event of each outlet :class:`~airflow.sdk.Asset`."""
    kept_back = {"bucket", "key_prefix", "dashboard_url"}
    extra = {name: value for name, value in result.items() if name not in kept_back}
    for outlet in outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra.update(extra)
