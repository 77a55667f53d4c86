# SPDX-License-Identifier: Apache-2.0
"""What templates leave: texts that stay texts, and nothing at all."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG

from airflow_provider_raybatch.operators.arguments import build_spec
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from tests.support.airflow_tasks import Run
from tests.support.batches import batch
from tests.support.fake_ray import FakeRay


def test_native_objects_leave_texts_as_they_are() -> None:
    """A version or a date in digits is no number where an argument is text."""
    with DAG("d", schedule=None, render_template_as_native_obj=True) as dag:
        operator = RayBatchInferenceOperator(
            task_id="t", source="{{ params.paths }}", prompt=None, model="m", destination="/out",
            messages=[{"role": "user", "content": text} for text in ("{{ params.version }}", "{row.x}")],
            output_prefix="{{ params.version }}", output_options={"response_column": "{{ params.day }}"},
            limit="{{ params.n }}",
            sampling={"max_tokens": "{{ params.n }}"}, id_column="{{ params.nothing }}",
        )  # fmt: skip
        job = RayJobOperator(task_id="j", entrypoint="{{ params.day }}", deferrable="{{ params.n == 3 }}")
    params = {"version": "3.10", "day": "20260101", "n": 3, "paths": ["/a", "/b"], "nothing": None}
    for each in (operator, job):
        each.render_template_fields({"params": params, "dag": dag})  # type: ignore[typeddict-item, arg-type]
    assert operator.messages == [{"role": "user", "content": "3.10"}, {"role": "user", "content": "{row.x}"}]
    assert (operator.output_prefix, operator.output_options) == ("3.10", {"response_column": "20260101"})
    assert (operator.limit, operator.sampling, operator.source) == (3, {"max_tokens": 3}, ["/a", "/b"])
    assert (job.entrypoint, job.deferrable) == ("20260101", True)
    spec = build_spec(operator.arguments())
    assert (spec.id_column, spec.output_prefix) == (None, "3.10")


@pytest.mark.parametrize("nothing", ["{{ '' }}", "{{ none }}"])
def test_a_template_may_leave_nothing_for_any_of_them(ray: FakeRay, run: Run, nothing: str) -> None:
    names = ("timeout", "deadline", "deferrable", "cancel_on_kill", "on_stale_state",
             "ray_conn_id", "aws_conn_id", "hf_conn_id", "runtime_env")  # fmt: skip
    operator = batch(**dict.fromkeys(names, nothing))
    operator.render_template_fields({})
    assert operator.execute(run.context())["rows"] == 2
    found = (operator.on_stale_state, operator.cancel_on_kill, operator.ray_conn_id)
    assert found == ("replace", True, "ray_default")
    arguments = dict.fromkeys(RayJobOperator.template_fields, nothing)
    given = {"task_id": "j", "entrypoint": "x", "wait_for_completion": "{{ false }}"}
    job = RayJobOperator(**{**arguments, **given})
    job.render_template_fields({})
    job.execute(Run(task_id="j").context())
    assert (job.poll_interval, job.timeout) == (10.0, None)
