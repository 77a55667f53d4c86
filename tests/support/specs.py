# SPDX-License-Identifier: Apache-2.0
"""Small, complete specs for tests, which replace single fields."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

TASK = {"dag_id": "nightly", "run_id": "r1", "task_id": "label"}
_OTHER_PROMPTS = {
    "steps",
    "messages",
    "messages_column",
    "prompt_column",
    "prompt_function",
    "document",
    "documents_column",
}


def document(**fields: Any) -> dict[str, Any]:
    """Return a spec as plain data; `fields` replace its own, another prompt argument replaces `prompt`."""
    return {
        "source": ["/data/in.jsonl"],
        **asking("Say {row.text}", fields),
        "model": "echo",
        "engine": "echo",
        "destination": "/data/out",
        **fields,
    }


def asking(prompt: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return `prompt` as the argument, unless `fields` have another prompt argument."""
    return {} if _OTHER_PROMPTS & fields.keys() else {"prompt": prompt}


def spec(**fields: Any) -> BatchInferenceSpec:
    """Return the parsed :func:`document`."""
    return parse(BatchInferenceSpec, document(**fields))


def spec_error(**fields: Any) -> str:
    """Return the sentence that refuses such a spec."""
    with pytest.raises(SpecError) as caught:
        spec(**fields)
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert "\n" not in str(caught.value)
    return str(caught.value)


def submitted(
    number: int = 0, token: str = "token", task: dict[str, Any] | None = None, **fields: Any
) -> Any:
    """Return a spec that knows its submission."""
    submission = {"task": task or TASK, "run_token": token, "submission_id": f"raybatch-x-{number}"}
    return spec(**{"submission": submission, **fields})
