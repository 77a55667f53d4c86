# SPDX-License-Identifier: Apache-2.0
"""What the model's tokenizer says of the first rows: failures to come, cut prompts, special tokens."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.failures.summary import counted
from airflow_provider_raybatch.job.monitor.error_budget import Tolerance
from airflow_provider_raybatch.job.preflight.input_check import Sample
from airflow_provider_raybatch.job.preflight.model_check import Checked
from airflow_provider_raybatch.job.request.special_tokens import SpecialTokens, effect


def check_prompts(
    spec: BatchInferenceSpec,
    sample: Sample,
    checked: Checked,
    tolerance: Tolerance,
    emit: Callable[[Notice], None],
) -> None:
    """Say what the first rows tell of all.

    :raises RaybatchError: more of them fail than `tolerance` allows for the whole input.
    """
    rows = count_of(sample.rows, "row")
    special = SpecialTokens(checked.special_tokens)
    failures = dict(checked.failures)
    marked = []
    for place, request in enumerate(sample.requests):
        if spec.special_tokens_in_text == "error":  # a check that is kept does not know these rows
            if (failure := special.failure(request)) is not None:
                failures[place] = failure
        elif place not in failures and request.messages is not None and (token := special.found(request)):
            marked.append(token)
    ordinals = sample.ordinals()
    failed = [(ordinals[place], failures[place]) for place in sorted(failures)]
    if failed:
        remedy = ""
        if spec.on_overlong == "error" and any("leaves no room" in failure.reason for _, failure in failed):
            remedy = "cut long values with on_overlong='truncate'"
        tolerance.before(sorted([*sample.failures, *failed]), sample.rows, remedy)
        text = f"{len(failed):,} of the first {rows} will be dead letters: {counted(failed)}."
        emit(Notice(level="warning", message=text))
    if checked.truncated:
        text = (
            f"{checked.truncated:,} of the first {count_of(sample.rows, 'prompt')} exceed the context of "
            f"{count_of(checked.context, 'token')} (the longest has {checked.longest:,}); the longest "
            "values of their rows are cut."
        )
        emit(Notice(message=text))
    if marked:
        shown = ", ".join(map(repr, list(dict.fromkeys(marked))[:3]))
        text = f"{len(marked):,} of the first {rows} have special tokens in their text ({shown})"
        emit(Notice(level="warning", message=f"{text}, {effect(spec)}."))
