# SPDX-License-Identifier: Apache-2.0
"""``report.json``: what people ask after a job has run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel, parse_file
from airflow_provider_raybatch.contract.failures import FailureClass, without_examples, without_values
from airflow_provider_raybatch.contract.manifest import RunResult
from airflow_provider_raybatch.contract.run_numbers import Moment
from airflow_provider_raybatch.contract.submission import TaskKey


class FailedExample(ContractModel):
    """One failed row. Texts are cut; ``None`` where there is none.

    :param ordinal: position in the input.
    :param row: input columns as JSON text.
    """

    ordinal: int
    id: str | None = None
    reason: str
    request: str | None = None
    response: str | None = None
    row: str | None = None


class FailureGroup(ContractModel):
    """Failed rows of one step: how many, the most frequent reason, and some of them."""

    step: str
    rows: int
    reason: str | None = None
    examples: list[FailedExample] = Field(default_factory=list)


class SampleAnswer(ContractModel):
    """What was asked about a row and what came. Texts are cut.

    :param step: its name; ``None`` for one question.
    :param request: what was asked, as a person reads it, before the chat template.
    """

    step: str | None = None
    request: str | None = None
    response: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None


class Sample(SampleAnswer):
    """A good row.

    :param row: input columns as JSON text.
    :param steps: what each step asked and got, without those that left the row out; the sample's own request
        and response are ``None`` then.
    """

    ordinal: int
    id: str | None = None
    row: str | None = None
    steps: list[SampleAnswer] = Field(default_factory=list)

    @property
    def answers(self) -> Sequence[SampleAnswer]:
        """Each question with its answer, in the order of the steps."""
        return self.steps or ([self] if self.request is not None or self.response is not None else [])


class Answer(ContractModel):
    """One of few different answers, and how many rows have it."""

    text: str
    rows: int


class Bin(ContractModel):
    """Rows with a length of `first` to `last` tokens."""

    first: int
    last: int
    rows: int


class StepAnswers(ContractModel):
    """What is told of the answers to one step; see :class:`Report`."""

    step: str | None = None
    finish_reasons: dict[str, int] = Field(default_factory=dict)
    prompt_tokens: list[Bin] = Field(default_factory=list)
    output_tokens: list[Bin] = Field(default_factory=list)
    answers: list[Answer] | None = None


class Report(RunResult):
    """A job after its end.

    :param rows: good rows, `errors` failed rows, `total` rows of the input; ``None`` if not known.
    :param seconds: from the job's start to its end.
    :param state: ``committed``; ``failed``: the job said why; ``ended``: it was killed or lost.
    :param attempts: known jobs of the task's run, with this one.
    :param failures: by step, the most frequent one first.
    :param prompt_tokens: lengths of prompts; `output_tokens`: of answers.
    :param answers: the most frequent first, if there are few different ones; else ``None``.
    :param answers_by_step: the same for each of `steps`; the report's own `finish_reasons` are of all steps
        then, and it has neither lengths nor answers.
    :param course: rates over time; empty where no request was made.
    :param arguments: those that explain the result: model, engine, prompt, sampling.
    :param columns: name and Arrow type.
    :param content: whether it may hold content of rows; False with `report_samples` 0.
    """

    schema_version: Literal[1] = 1
    rows: int | None = None
    errors: int | None = None
    total: int | None = None
    seconds: float = 0.0
    state: Literal["committed", "failed", "ended"]
    failure: str | None = None
    failure_class: FailureClass | None = None
    attempts: int = 1
    failures: list[FailureGroup] = Field(default_factory=list)
    prompt_tokens: list[Bin] = Field(default_factory=list)
    output_tokens: list[Bin] = Field(default_factory=list)
    answers: list[Answer] | None = None
    answers_by_step: list[StepAnswers] = Field(default_factory=list)
    samples: list[Sample] = Field(default_factory=list)
    content: bool = True
    course: list[Moment] = Field(default_factory=list)
    arguments: dict[str, Any] = Field(default_factory=dict)
    columns: dict[str, str] = Field(default_factory=dict)
    task: TaskKey

    @property
    def told(self) -> Sequence[StepAnswers]:
        """What is told of the answers to each question, in the order of the steps."""
        own = {name: getattr(self, name) for name in StepAnswers.model_fields if name != "step"}
        return self.answers_by_step or [StepAnswers(**own)]

    def without_content(self) -> Report:
        """The same without what rows hold: samples, examples, answers, and what reasons quote."""
        failures = [
            group.model_copy(update={"examples": [], "reason": group.reason and without_values(group.reason)})
            for group in self.failures
        ]
        failure = self.failure and without_examples(self.failure)
        return self.model_copy(
            update={
                "failures": failures,
                "failure": failure,
                "answers": None,
                "answers_by_step": [one.model_copy(update={"answers": None}) for one in self.answers_by_step],
                "samples": [],
                "content": False,
            }
        )


def parse_report(content: bytes, file: str) -> Report:
    """The report in a file.

    :param file: where it lies.
    :raises SpecError: names the file, which is broken, foreign or of another version.
    """
    return parse_file(Report, content, file, "a report", "the next run of the task writes it anew")
