# SPDX-License-Identifier: Apache-2.0
"""Specs to test with: small, whole, and different in what a test says."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

TASK = {"dag_id": "nightly", "run_id": "r1", "task_id": "label"}


def document(**fields: Any) -> dict[str, Any]:
    """A spec as plain data; `fields` replace whole top-level fields."""
    return {
        "source": {"paths": ["/data/in.jsonl"]},
        "prompt": {"kind": "template", "template": "Say {row.text}"},
        "model": {"name": "echo"},
        "engine": {"kind": "echo"},
        "destination": {"uri": "/data/out"},
        **fields,
    }


def spec(**fields: Any) -> BatchInferenceSpec:
    """The same, parsed."""
    return parse(BatchInferenceSpec, document(**fields))


def submitted(
    number: int = 0, token: str = "token", task: dict[str, Any] | None = None, **fields: Any
) -> Any:
    """A spec that knows its submission."""
    submission = {"task": task or TASK, "run_token": token, "submission_id": f"raybatch-x-{number}"}
    return spec(**{"submission": submission, **fields})
