# SPDX-License-Identifier: Apache-2.0
"""Checks what later steps take of the source alone, such as images, before earlier ones are paid for."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.failures.public_reasons import public_reason
from airflow_provider_raybatch.job.failures.summary import counted
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.error_budget import Tolerance
from airflow_provider_raybatch.job.preflight.input_check import sample


def check_later_steps(
    spec: BatchInferenceSpec,
    source: Source,
    credentials: AwsCredentials | None,
    tolerance: Tolerance,
    emit: Callable[[Notice], None],
) -> None:
    """Look at the images, sampling parameters and adapters of the first rows, and whether images may be read.

    Where a condition on an answer decides which rows a step asks, it is told, and nothing is refused.

    :raises PreflightError: a step can use none of these rows.
    :raises RaybatchError: more rows fail than `tolerance` allows for the whole input.
    """
    for step in spec.step_specs()[1:]:
        if step.columns_of_source and step.asked_step is not None:
            earlier = {name.lower() for name in step.asked_step.earlier_columns}
            is_sure = earlier.isdisjoint(map(str.lower, step.asked_step.step.condition_columns))
            # With a text in the place of the prompt, which reads answers.
            alone = {"prompt": "", "system_prompt": None, "messages": None, "postprocess": None}
            asked = step.model_copy(update=alone if is_sure else {**alone, "asked_step": None})
            sampled = sample(asked, source, credentials)
            if not sampled.failures:
                continue
            arguments = ", ".join(dict.fromkeys(step.columns_of_source.values()))
            where = f"steps: {step.asked_step.step.name}: {arguments}"
            rows, used = count_of(sampled.rows, "row"), "shown" if arguments == "images" else "asked"
            if is_sure and not sampled.requests:
                _, first = sampled.failures[0]
                none = f"{where}: none of the first {rows} can be {used}; the first fails"
                raise PreflightError(f"{none}: {first.reason}.", public=f"{none}: {public_reason(first)}.")
            if is_sure:
                tolerance.before(sampled.failures, sampled.rows)
            why = counted(sampled.failures, shows_rows=spec.shows_rows)
            text = f"{where}: {len(sampled.failures):,} of the first {rows} can't be {used}: {why}."
            emit(Notice(level="warning", message=text))
