# SPDX-License-Identifier: Apache-2.0
"""Subclasses as users of Airflow write them: fields and defaults of their own, arguments given later."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator

GOOD: dict[str, Any] = {"task_id": "t", "source": "/in", "destination": "/out", "model": "m"}


class WithField(RayBatchInferenceOperator):
    """Sets its own template field after ours, as Airflow's guide shows it."""

    template_fields = (*RayBatchInferenceOperator.template_fields, "tenant")

    def __init__(self, *, tenant: str, **kwargs: Any) -> None:
        super().__init__(prompt="{row.x}", **kwargs)
        self.tenant = tenant


class WithDefault(RayJobOperator):
    """Has a template as its default."""

    def __init__(self, *, entrypoint: str = "python etl.py {{ ds }}", **kwargs: Any) -> None:
        super().__init__(entrypoint=entrypoint, **kwargs)


class Later(RayBatchInferenceOperator):
    """Makes its prompt when it is made, or when it runs."""

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if topic:
            self.prompt = f"Is {{row.x}} about {topic}?"


def rendered(operator: Any) -> Any:
    operator.render_template_fields({"ds": "2026-01-01"})
    return operator


def test_a_field_of_a_subclass_is_rendered() -> None:
    with DAG("d", schedule=None):
        assert rendered(WithField(tenant="{{ ds }}", **GOOD)).tenant == "2026-01-01"


def test_a_template_that_is_a_subclass_default_is_rendered() -> None:
    with DAG("d", schedule=None):
        operator = rendered(WithDefault(task_id="t"))
    assert operator.entrypoint == "python etl.py 2026-01-01"


@pytest.mark.parametrize("topic", ["{{ ds }}", ""])
def test_arguments_may_be_given_after_ours(topic: str) -> None:
    """What such a subclass gives at once is checked all the same."""
    with DAG("d", schedule=None):
        operator = rendered(Later(topic=topic, **GOOD))
        assert operator.prompt == ("Is {row.x} about 2026-01-01?" if topic else None)
        with pytest.raises(SpecError, match="max_errors: it must be at least 0, but it is -1"):
            Later(topic=topic, **{**GOOD, "task_id": "u", "max_errors": -1})
