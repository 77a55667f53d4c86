# SPDX-License-Identifier: Apache-2.0
"""Batch inferences whose arguments come with the run, plain and misbehaving."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task
from airflow.triggers.testing import FailureTrigger

from airflow_provider_raybatch.arguments import Advanced, Limits, Output
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.steps import Step

PARAMS: dict[str, Any] = {
    "ray_conn_id": "ray_default",
    "aws_conn_id": None,
    "hf_conn_id": None,
    "source": [],
    "destination": "",
    "prompt": "Say {row.text}",
    "engine_args": {},
    "sampling": {},
    "reuse": None,
    "image_roots": None,
    "model": "",
    "runtime_env": {},
    # For Ray jobs that are not batch inferences.
    "seconds": 600,
}
MODES = {"blocking": False, "deferrable": True}


class DiesAfterPost(RayBatchInferenceOperator):
    """An operator whose first attempt dies with its supervisor as soon as the cluster has the job."""

    def execute(self, context: Any) -> Any:
        if context["ti"].try_number == 1:
            from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient

            submit = RayJobsClient.submit

            async def submit_and_die(client: RayJobsClient, request: Any) -> None:
                await submit(client, request)
                os.kill(os.getppid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

            RayJobsClient.submit = submit_and_die  # type: ignore[method-assign]
        return super().execute(context)


def fail_once(context: Any, result: Any) -> None:
    """Fail after the task has returned, as an XCom backend or a node may."""
    if context["ti"].try_number == 1:
        if context["task"].deferrable:
            raise ConnectionError("what follows the task is away")
        os.kill(os.getpid(), signal.SIGKILL)


class ShortGrace(RayJobOperator):
    """An operator that leaves its trigger hardly any time after the deadline."""

    def execute(self, context: Any) -> Any:
        from airflow_provider_raybatch.operators import following

        following.DEFERRAL_GRACE = 30.0
        return super().execute(context)


def dag_of(dag_id: str, **options: Any) -> DAG:
    return DAG(
        dag_id,
        schedule=None,
        params=PARAMS,
        render_template_as_native_obj=True,  # the params keep their types
        default_args={"retries": 1, "retry_delay": timedelta(seconds=1)},
        **options,
    )


def arguments(deferrable: bool) -> dict[str, Any]:
    """Return the arguments of a batch inference with the echo engine, by the run's params."""
    return {
        "ray_conn_id": "{{ params.ray_conn_id }}",
        "aws_conn_id": "{{ params.aws_conn_id }}",
        "hf_conn_id": "{{ params.hf_conn_id }}",
        "deferrable": deferrable,
        "poll_interval": 1,
        "source": "{{ params.source }}",
        "destination": "{{ params.destination }}",
        "prompt": "{{ params.prompt }}",
        "engine": "echo",
        "engine_args": "{{ params.engine_args }}",
        "sampling": "{{ params.sampling }}",
        "reuse": "{{ params.reuse }}",
    }


for mode, deferrable in MODES.items():
    with dag_of(f"batch_{mode}"):
        RayBatchInferenceOperator(task_id="infer", **arguments(deferrable))

    with dag_of(f"once_{mode}"):
        RayBatchInferenceOperator(task_id="infer", retries=0, **arguments(deferrable))

    with dag_of(f"dies_after_post_{mode}"):
        DiesAfterPost(task_id="infer", **arguments(deferrable))

    with dag_of(f"fails_after_{mode}"):
        RayBatchInferenceOperator(task_id="infer", post_execute=fail_once, **arguments(deferrable))

    with dag_of(f"sleep_{mode}"):
        RayJobOperator(
            task_id="sleep", deferrable=deferrable, poll_interval=1, entrypoint="sleep {{ params.seconds }}"
        )

    with dag_of(f"timeout_{mode}"):
        for task_id, operator, options in (
            ("infer", RayBatchInferenceOperator, arguments(deferrable)),
            ("sleep", RayJobOperator, {
                "ray_conn_id": "{{ params.ray_conn_id }}",
                "deferrable": deferrable,
                "poll_interval": 1,
                "entrypoint": "sleep {{ params.seconds }}",
            }),
        ):  # fmt: skip
            operator(task_id=task_id, retries=0, timeout=20, **options)  # type: ignore[operator]


with dag_of("warm"):
    generate = RayBatchInferenceOperator(task_id="generate", keep_warm=300, **arguments(deferrable=False))
    judge = RayBatchInferenceOperator(
        task_id="judge",
        keep_warm=300,
        **{
            **arguments(deferrable=True),
            "source": "{{ ti.xcom_pull('generate')['uri'] }}",
            "destination": "{{ params.destination }}-judged",
            "prompt": "Judge {row.response}",
        },
        output_prefix="judged_",
    )
    generate >> judge


class BadTrigger(RayBatchInferenceOperator):
    """An operator whose first trigger fails at once."""

    def defer(self, *, trigger: Any, **options: Any) -> Any:
        from airflow.sdk import get_current_context

        if get_current_context()["ti"].try_number == 1:
            trigger = FailureTrigger()  # type: ignore[no-untyped-call]
        super().defer(trigger=trigger, **options)


with dag_of("bad_trigger"):
    BadTrigger(task_id="infer", **arguments(deferrable=True))

with dag_of("orphan"):
    RayBatchInferenceOperator(
        task_id="infer", retries=0, limits=Limits(orphan_timeout=10), **arguments(deferrable=False)
    )

with dag_of("later_deadline"):
    RayBatchInferenceOperator(
        task_id="infer",
        timeout="{{ params.seconds if ti.try_number == 1 else 900 }}",
        **arguments(deferrable=False),
    )

with dag_of("forged"):
    forging = arguments(deferrable=True)
    del forging["prompt"]
    RayBatchInferenceOperator(task_id="infer", prompt_function="forging:prompt", retries=0, **forging)

with dag_of("labelled"):
    RayBatchInferenceOperator(
        task_id="infer",
        retries=0,
        output_options=Output(
            response_column="inferred_industry", postprocess="labels:parse", rows_per_part=10
        ),
        max_errors=1,
        **arguments(deferrable=True),
    )

with dag_of("chat"):
    RayBatchInferenceOperator(
        task_id="infer",
        deferrable=True,
        poll_interval=2,
        source="{{ params.source }}",
        destination="{{ params.destination }}",
        messages="messages",
        advanced=Advanced(sampling_column="sampling"),
        model="{{ params.model }}",
        runtime_env="{{ params.runtime_env }}",
        engine_args={
            "max_model_len": 512,
            # Without it, this small model may write white space up to its token limit.
            "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        },
        output_options=Output(preserve_order=True),
        max_error_fraction=0.5,
    )

with dag_of("in_steps"):
    RayBatchInferenceOperator(
        task_id="infer",
        steps=[
            Step("draft", prompt="{{ params.prompt }}", sampling={"n": 2}),
            Step("judge", prompt="judge {row.draft_response} of {row.number}", each="draft"),
        ],
        replicas=2,
        advanced={"num_cpus": 0.5, "flush_interval": 0.5},
        **{name: value for name, value in arguments(deferrable=True).items() if name != "prompt"},
    )

with dag_of("only_submits"):
    RayJobOperator(
        task_id="sleep",
        wait_for_completion=False,
        entrypoint="sleep {{ params.seconds }}",
        post_execute=fail_once,
    )

with dag_of("lost_trigger"):
    ShortGrace(
        task_id="sleep",
        ray_conn_id="{{ params.ray_conn_id }}",
        deferrable=True,
        retries=0,
        timeout=10,
        entrypoint="sleep {{ params.seconds }}",
    )

with dag_of("mapped"):

    @task
    def sources(params: dict[str, Any]) -> list[str]:
        return list(params["source"])

    mapped = arguments(deferrable=False)
    del mapped["source"]
    mapped["destination"] = "{{ params.destination }}/{{ ti.map_index }}"
    RayBatchInferenceOperator.partial(task_id="infer", **mapped).expand(source=sources())

# As by Airflow's default, a rendered template is text.
with DAG("templated", schedule=None, params=PARAMS, default_args={"retries": 1}):

    @task
    def bound() -> int:
        return 3

    RayBatchInferenceOperator(
        task_id="infer",
        aws_conn_id="{{ params.aws_conn_id }}",
        hf_conn_id="{{ params.hf_conn_id }}",
        deferrable="{{ params.model != '' }}",
        poll_interval="{{ 1 }}",
        timeout="{{ params.seconds }}000",
        source="{{ params.source }}",
        limit="{{ none }}",
        destination="{{ params.destination }}/{{ dag_run.run_after | ts_nodash }}",
        output_prefix="llm_{{ 'echo' }}_",
        prompt="Say {row.text}",
        engine="echo",
        replicas="{{ 1 }}",
        sampling={"max_tokens": "{{ params.seconds }}", "temperature": "{{ 0 }}"},
        max_errors=bound(),
    )

with DAG("double_braces", schedule=None, params=PARAMS, default_args={"retries": 1}):
    RayBatchInferenceOperator(
        task_id="infer",
        source="{{ params.source }}",
        destination="{{ params.destination }}",
        prompt="Say {{ row.text }}",
        engine="echo",
    )
