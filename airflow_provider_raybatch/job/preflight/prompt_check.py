# SPDX-License-Identifier: Apache-2.0
"""Reports what the first rows show: failures, cut prompts, special tokens, and what later steps can't use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.failures.public_reasons import counted, refusal_by
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.budgets import Tolerance
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.preflight.input_check import SampledRows, sample
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.request.row_text import SpecialTokens, special_tokens_effect
from airflow_provider_raybatch.job.row import RowFailure


@dataclass(frozen=True)
class Refusal:
    """Refuses a job whose first rows fail too often, unless they have an answer already.

    The context, which is not part of a request's key, may have been larger when they were answered.

    :param failures: by ordinal.
    :param rows: how many were read.
    """

    tolerance: Tolerance
    failures: list[tuple[int, RowFailure]]
    rows: int
    remedy: str

    def unless(self, answered: RowMask) -> None:
        """:raises RaybatchError: too many of them have no answer."""
        left = [one for one in self.failures if not answered[one[0]]]
        self.tolerance.before(left, self.rows, self.remedy)


def check_prompts(
    spec: BatchInferenceSpec,
    sample: SampledRows,
    checked: ModelCheck,
    tolerance: Tolerance,
    emit: Callable[[Notice], None],
) -> Refusal | None:
    """Report what the first rows show.

    :returns: a refusal where more of them fail than `tolerance` allows for the whole input.
    """
    failures, marked = _failures_and_marked(spec, sample, checked)
    _warn_of_later_steps(spec, sample, failures, emit)
    rows, ordinals = count_of(sample.rows, "row"), sample.ordinals()
    failed = [(ordinals[place], failures[place]) for place in sorted(failures) if place < len(ordinals)]
    if failed:
        remedy = ""
        if spec.on_overlong == "error" and any("leaves no room" in failure.reason for _, failure in failed):
            remedy = "cut long values with on_overlong='truncate'"
        together = sorted([*sample.failures, *failed])
        if tolerance.exceeded(len(together)):
            return Refusal(tolerance, together, sample.rows, remedy)
        why = counted(failed, shows_rows=spec.shows_rows)
        text = f"{len(failed):,} of the first {rows} will be dead letters: {why}."
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
        which = f" ({shown})" if spec.shows_rows else ""
        text = f"{len(marked):,} of the first {rows} have special tokens in their text{which}"
        emit(Notice(level="warning", message=f"{text}, {special_tokens_effect(spec)}."))
    return None


def _warn_of_later_steps(
    spec: BatchInferenceSpec,
    sample: SampledRows,
    failures: Mapping[int, RowFailure],
    emit: Callable[[Notice], None],
) -> None:
    """Behind the rows' own are the requests that stand for later steps, with the first row's text."""
    for place in sorted(place for place in failures if place >= len(sample.ordinals()) and 0 not in failures):
        why = counted([(0, failures[place])], shows_rows=spec.shows_rows)
        text = f"steps: {sample.requests[place].step}: its first request will fail: {why}."
        emit(Notice(level="warning", message=text))


def _failures_and_marked(
    spec: BatchInferenceSpec, sample: SampledRows, checked: ModelCheck
) -> tuple[dict[int, RowFailure], list[str]]:
    """The rows that fail, by place, and the special tokens in chats that go on."""
    special, failures, marked = SpecialTokens(checked.special_tokens), dict(checked.failures), []
    for place, request in enumerate(sample.requests):
        if spec.special_tokens_in_text == "error":  # a check that is kept does not know these rows
            if (failure := special.failure(request)) is not None:
                failures[place] = failure
        elif place not in failures and request.messages is not None and (token := special.found(request)):
            marked.append(token)
    return failures, marked


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
    for step in spec.questions()[1:]:
        if step.columns_of_source:
            earlier = {name.lower() for name in step.question.earlier_columns}
            is_sure = earlier.isdisjoint(map(str.lower, step.condition_columns))
            # With a text in the place of the prompt, which reads answers.
            alone = {"prompt": "", "system_prompt": None, "messages": None, "postprocess": None}
            asked = step.model_copy(update=alone if is_sure else {**alone, "asked_step": None})
            sampled = sample(asked, source, credentials)
            if not sampled.failures:
                continue
            arguments = ", ".join(dict.fromkeys(step.columns_of_source.values()))
            where = step.step_prefix + arguments
            rows, used = count_of(sampled.rows, "row"), "shown" if arguments == "images" else "asked"
            if is_sure and not sampled.requests:
                _, first = sampled.failures[0]
                none = f"{where}: none of the first {rows} can be {used}; the first fails"
                raise refusal_by(none, first)
            if is_sure:
                tolerance.before(sampled.failures, sampled.rows)
            why = counted(sampled.failures, shows_rows=spec.shows_rows)
            text = f"{where}: {len(sampled.failures):,} of the first {rows} can't be {used}: {why}."
            emit(Notice(level="warning", message=text))
