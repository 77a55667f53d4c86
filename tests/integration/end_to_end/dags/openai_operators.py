# SPDX-License-Identifier: Apache-2.0
"""Other providers' operators, as their users write them. Only where they are installed."""

from __future__ import annotations

from importlib.util import find_spec

from airflow.sdk import DAG
from pydantic import BaseModel

MODES = {"blocking": False, "deferrable": True}


class Answer(BaseModel):
    mood: str
    stars: int


if find_spec("airflow.providers.openai") is not None:
    from airflow.providers.common.ai.operators.llm_batch import LLMBatchOperator
    from airflow.providers.openai.operators.openai import OpenAITriggerBatchOperator

    with DAG("openai_operators", schedule=None, params={"file_id": "", "result_path": ""}):
        for mode, deferrable in MODES.items():
            OpenAITriggerBatchOperator(
                task_id=f"trigger_{mode}",
                file_id="{{ params.file_id }}",
                endpoint="/v1/chat/completions",
                wait_seconds=1,
                poll_interval=1,
                deferrable=deferrable,
            )
            for name, output_type in (("text", str), ("json", Answer)):
                LLMBatchOperator(
                    task_id=f"{name}_{mode}",
                    requests=[f"operators {name} {mode} {number}" for number in range(3)],
                    result_path="{{ params.result_path }}",
                    llm_conn_id="pydanticai_default",
                    model_id="openai:echo",
                    system_prompt="Answer.",
                    output_type=output_type,
                    poll_interval=30,
                    deferrable=deferrable,
                )
