# SPDX-License-Identifier: Apache-2.0
"""All checks before a job pays for anything. The driver calls them in order, and starts replicas between.

They only read the destination's journal. They write the marker of a response store, the copy of an earlier
submission's manifest, and (deleted again) a file that shows whether the destination keeps jobs apart.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.budget import check_prices
from airflow_provider_raybatch.job.monitor.error_budget import Tolerance
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.output.record import records_of
from airflow_provider_raybatch.job.parts.ledger import Ledger, look_back
from airflow_provider_raybatch.job.planning import cluster_view, plan
from airflow_provider_raybatch.job.preflight.engine_check import (
    Emit,
    check_engine,
    check_names,
    checked_model,
    tell_of_choices,
    tell_of_memory,
)
from airflow_provider_raybatch.job.preflight.input_check import (
    SampledRows,
    check_rows,
    sample,
)
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.prompt_check import Refusal, check_later_steps, check_prompts
from airflow_provider_raybatch.job.preflight.response_model import schema_of_model, with_model
from airflow_provider_raybatch.job.preflight.row_ids import check_ids
from airflow_provider_raybatch.job.preflight.services import Services
from airflow_provider_raybatch.job.preflight.tool_check import check_tools
from airflow_provider_raybatch.job.reuse.asked import Asked, asked_by
from airflow_provider_raybatch.job.reuse.response_store import open_store
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.row_order import grouping
from airflow_provider_raybatch.job.run.cpu_tasks import apart_if_users_code
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.work import CheckedModel, Job
from airflow_provider_raybatch.storage.folder import folder


@dataclass(frozen=True)
class SurveyedInput:
    """The input, whose first rows have passed their checks.

    :param spec: as it was submitted, with the schema of its Pydantic model.
    :param tolerance: how many rows may fail.
    :param store: the response store, if the job has one.
    :param prefix: and `lengths`: see :func:`~airflow_provider_raybatch.job.row_order.regroup.grouping_for`.
    """

    spec: BatchInferenceSpec
    source: Source
    tolerance: Tolerance
    store: ResponseStore | None = None
    prefix: int = 0
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class CheckedEngine:
    """An engine with its model, as they were checked.

    :param spec: with the date that chat templates print.
    :param refusal: too many of the first rows fail, unless they have an answer; no engine starts before.
    """

    spec: BatchInferenceSpec
    check: ModelCheck
    refusal: Refusal | None = None

    @property
    def model(self) -> CheckedModel:
        """What engines load."""
        return checked_model(self.spec, self.check)


@dataclass(frozen=True)
class CheckedJob:
    """A job that has passed all checks.

    :param job: as replicas get it.
    :param earlier: what earlier submissions finished of the same input and requests.
    :param earlier_steps: the same of each step before the last one.
    :param asked: what the requests depend on.
    """

    surveyed: SurveyedInput
    engine: CheckedEngine
    job: Job
    earlier: Ledger
    earlier_steps: Sequence[Ledger]
    asked: Asked


def open_destination(services: Services, spec: BatchInferenceSpec) -> list[JobRecord] | BatchManifest:
    """Check software and names, and that this run may claim the destination; add up what it has cost.

    :returns: the records of all earlier jobs of the task; or the dataset, if an earlier submission of this
        run committed it with the same arguments.
    :raises PreflightError: the destination belongs to another task.
    """
    cluster_view.check_versions()
    if spec.engine == ray_data_llm.NAME:
        ray_data_llm.check_processor(spec)
    check_names(spec)
    journal = services.journal
    if (committed := journal.committed()) is not None:
        return committed
    journal.check_owner()
    records = records_of(journal.folder, layout.task_folder(journal.submission))
    services.money.begin(records, journal.submission.run_token)
    return records


def journal_of(spec: BatchInferenceSpec, submission: Submission, secrets: Secrets) -> Journal:
    """The journal of the destination, for a submission."""
    take_over = spec.on_destination_owned == "take_over"
    return Journal(folder(spec.destination, secrets.aws), submission, take_over, spec.fingerprint)


def with_response_model(spec: BatchInferenceSpec) -> BatchInferenceSpec:
    """`spec` with the schema of its Pydantic model, which is a user's code."""
    return with_model(spec, apart_if_users_code(spec, schema_of_model))


def survey_input(
    services: Services, spec: BatchInferenceSpec, source: Source
) -> tuple[SurveyedInput, SampledRows]:
    """Check ids, the first rows, and that destination and response store are writable.

    :returns: the input, and its first rows.
    """
    emit, aws = services.emit, services.secrets.aws
    tolerance = Tolerance(spec, source.rows, all_may_fail=spec.answers_lines)
    if spec.id_column is not None:
        check_ids(source, spec.id_column, aws, are_lines=spec.asks_by_lines)
    services.start_up.ended("source")
    check_tools(spec)
    first = spec.step_specs()[0]
    take = partial(apart_if_users_code(first, sample), first, source, aws)
    sampled = check_rows(first, take, tolerance, emit)
    check_later_steps(spec, source, aws, tolerance, emit)
    services.journal.check_conditional_writes()
    store = open_store(spec, aws, emit)
    services.start_up.ended("prompt")
    texts = [grouping.text_of(request) for request in sampled.requests]
    if spec.deduplicate:  # the engine is asked once
        texts = list(dict.fromkeys(texts))
    prefix, lengths = grouping.scattered_prefix(texts, source.rows), grouping.sample_of(sampled.requests)
    return SurveyedInput(spec, source, tolerance, store, prefix, lengths), sampled


def check_gpu_prices(spec: BatchInferenceSpec, rows: int, emit: Emit) -> None:
    """Say which prices are missing or misspelt, if the job needs GPUs."""
    if spec.gpu_hour_price and plan.make(spec, rows, cluster := cluster_view.view()).gpus:
        for text in check_prices(spec, spec.accelerator_type, cluster):
            emit(events.Notice(level="warning", message=text))


def check_model(
    services: Services, spec: BatchInferenceSpec, sampled: SampledRows, tolerance: Tolerance
) -> CheckedEngine:
    """Check engine, model and prompts; replicas that have started may be asked.

    :param sampled: the first rows, with a request for each later step.
    """
    emit, environment = services.emit, credentials.environment(services.secrets)
    checked = check_engine(spec, sampled.requests, environment, emit, services.launch)
    checked = tell_of_memory(spec, checked, emit)
    refusal = check_prompts(spec, sampled, checked, tolerance, emit)
    tell_of_choices(spec, checked, sampled.requests, emit)
    return CheckedEngine(spec, checked, refusal)


def look_for_parts(
    services: Services, surveyed: SurveyedInput, engine: CheckedEngine, job: Job
) -> CheckedJob:
    """Look for what earlier submissions finished."""
    place, rows, refusal = services.journal.folder, surveyed.source.rows, engine.refusal
    *earlier_steps, earlier = [look_back(place, step.run_folder, rows) for step in job.steps]
    if refusal is not None and surveyed.store is None and not earlier.files:
        refusal.unless(earlier.good)  # at once, without the keys of all rows
    asked = asked_by(engine.spec, engine.check.generation_defaults, engine.check.digests)
    return CheckedJob(surveyed, engine, job, earlier, earlier_steps, asked)


def with_time(spec: BatchInferenceSpec, journal: Journal) -> BatchInferenceSpec:
    """Let chat templates print the run's date, so that a retry makes the same requests."""
    return spec.model_copy(update={"template_time": journal.run_began() or time.time()})
