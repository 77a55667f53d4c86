# SPDX-License-Identifier: Apache-2.0
"""What a manifest says of a job, where no report was written: an older version made it, or writing failed."""

from __future__ import annotations

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.report import FailureGroup, Report


def report_from_manifest(manifest: BatchManifest) -> Report:
    """A report of numbers and reasons: without samples, examples, lengths, answers and the job's course."""
    counts = manifest.counts
    steps = sorted(counts.errors_by_step.items(), key=lambda pair: -pair[1])
    same = (
        "tokens", "tokens_paid", "tokens_saved", "tokens_generated", "cost", "currency", "gpu_seconds",
        "gpu_seconds_by_type", "gpu_hour_price", "savings", "counts", "finish_reasons", "timing", "replicas",
        "last_run", "plan", "effective_sampling", "versions", "created_at", "submission_id", "format", "uri",
        "manifest_uri", "dead_letter_uri", "steps",
    )  # fmt: skip
    return Report(
        **{name: getattr(manifest, name) for name in same},
        rows=counts.ok,
        errors=counts.error,
        total=counts.input,
        seconds=manifest.timing.total_seconds or None,
        state="committed",
        failures=[
            FailureGroup(step=step, rows=rows, reason=manifest.reasons_by_step.get(step))
            for step, rows in steps
            if rows
        ],
        columns={column.name: column.type for column in manifest.columns},
        task=manifest.owner,
        content=False,
    )
