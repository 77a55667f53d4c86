# SPDX-License-Identifier: Apache-2.0
"""The checks of a job in their order, before it pays for anything. A preview makes the same ones.

The driver makes them list by list, and acts between: it starts replicas, and lets them load the model.
Checks only read the destination's journal. :func:`survey_input` writes the marker of a response store, and
(deleted again) a file that shows whether the destination keeps jobs apart.
"""

from __future__ import annotations

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.budgets import check_prices
from airflow_provider_raybatch.job.output.record import records_of
from airflow_provider_raybatch.job.parts.ledger import look_back
from airflow_provider_raybatch.job.planning import cluster_view, plan
from airflow_provider_raybatch.job.preflight.check import Check, Facts, first_failure
from airflow_provider_raybatch.job.preflight.checked_job import (
    CheckedEngine,
    CheckedJob,
    Services,
    StepLedgers,
    SurveyedInput,
    checked_job,
)
from airflow_provider_raybatch.job.preflight.column_check import COLUMN_CHECKS, FIRST_COLUMNS
from airflow_provider_raybatch.job.preflight.engine_check import (
    Emit,
    check_engine,
    check_names,
    tell_of_choices,
    tell_of_memory,
)
from airflow_provider_raybatch.job.preflight.input_check import (
    SampledRows,
    check_ids,
    check_rows,
    read_source,
    sample,
    source_notes,
    tolerance_of,
)
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.parser_check import check_tools, schema_of_model, with_model
from airflow_provider_raybatch.job.preflight.prompt_check import Refusal, check_later_steps, check_prompts
from airflow_provider_raybatch.job.reuse.asked import asked_by
from airflow_provider_raybatch.job.reuse.response_store import open_store
from airflow_provider_raybatch.job.row_order import grouping
from airflow_provider_raybatch.job.run.cpu_tasks import apart_if_users_code
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.work import Job


def _software(spec: BatchInferenceSpec) -> None:
    cluster_view.check_versions()
    if spec.engine == ray_data_llm.NAME:
        ray_data_llm.check_processor(spec)


def _owner(services: Services) -> None:
    services.journal.check_owner()


def _response_model(spec: BatchInferenceSpec) -> BatchInferenceSpec:
    """The spec with the schema of its Pydantic model, which is a user's code."""
    return with_model(spec, apart_if_users_code(spec, schema_of_model))


def _source(services: Services, spec: BatchInferenceSpec) -> Source:
    source = read_source(spec, services.secrets.aws, services.secrets.hf_token)
    for sentence in source_notes(source):
        services.emit(events.Notice(message=sentence))
    return source


def _ids(services: Services, spec: BatchInferenceSpec, source: Source) -> None:
    if spec.id_column in source.columns:
        check_ids(source, spec.id_column, services.secrets.aws, are_lines=spec.asks_by_lines)


def _sample(services: Services, spec: BatchInferenceSpec, source: Source) -> SampledRows:
    first = spec.questions()[0]
    return apart_if_users_code(first, sample)(first, source, services.secrets.aws)


def _rows(services: Services, spec: BatchInferenceSpec, source: Source, sampled: SampledRows) -> None:
    check_rows(spec.questions()[0], sampled, tolerance_of(spec, source), services.emit)


def _later_steps(services: Services, spec: BatchInferenceSpec, source: Source) -> None:
    check_later_steps(spec, source, services.secrets.aws, tolerance_of(spec, source), services.emit)


def _engine(services: Services, spec: BatchInferenceSpec, sampled: SampledRows) -> ModelCheck:
    """Replicas that have started may be asked."""
    environment = credentials.environment(services.secrets)
    return check_engine(spec, sampled.requests, environment, services.emit, services.launch)


def _memory(services: Services, spec: BatchInferenceSpec, model: ModelCheck) -> ModelCheck:
    return tell_of_memory(spec, model, services.emit)


def _prompts(
    services: Services, spec: BatchInferenceSpec, source: Source, sampled: SampledRows, model: ModelCheck
) -> Refusal | None:
    tell_of_choices(spec, model, sampled.requests, services.emit)
    return check_prompts(spec, sampled, model, tolerance_of(spec, source), services.emit)


def _job(services: Services, spec: BatchInferenceSpec, source: Source, model: ModelCheck) -> Job:
    return checked_job(spec, model, source.listing, services.journal, services.secrets)


def _earlier(services: Services, source: Source, job: Job) -> StepLedgers:
    place, rows = services.journal.folder, source.rows
    *earlier, last = [look_back(place, step.run_folder, rows) for step in job.questions]
    return StepLedgers(tuple(earlier), last)


NAMES = Check(check_names)
SOFTWARE = (Check(_software), NAMES)
OWNER = Check(_owner)
RESPONSE_MODEL = Check(_response_model)
SOURCE = (Check(_source), *COLUMN_CHECKS, Check(_ids))
SAMPLE = Check(_sample, after=(FIRST_COLUMNS,))
LATER_STEPS = Check(_later_steps, after=COLUMN_CHECKS)
PROMPT = (Check(check_tools), SAMPLE, Check(_rows), LATER_STEPS)
ENGINE = (Check(_engine, after=(NAMES,)), Check(_memory), Check(_prompts))
"""Of requests to all steps, see :meth:`SampledRows.of_all_steps`."""
EARLIER = (Check(_job), Check(_earlier))


def open_destination(facts: Facts) -> list[JobRecord] | BatchManifest:
    """Check software and names, and that this run may claim the destination; add up what it has cost.

    :returns: the records of all earlier jobs of the task; or the dataset, if an earlier submission of this
        run committed it with the same arguments.
    :raises PreflightError: the destination belongs to another task.
    """
    first_failure(SOFTWARE, facts)
    services = facts[Services]
    journal = services.journal
    if (committed := journal.committed()) is not None:
        return committed
    first_failure([OWNER], facts)
    records = records_of(journal.folder, layout.task_folder(journal.submission))
    services.money.begin(records, journal.submission.run_token)
    return records


def survey_input(facts: Facts) -> SurveyedInput:
    """Check source, ids and first rows, and that destination and response store are writable."""
    services, spec = facts[Services], facts[BatchInferenceSpec]
    first_failure(SOURCE, facts)
    services.start_up.ended("source")
    first_failure(PROMPT, facts)
    services.journal.check_conditional_writes()
    store = open_store(spec, services.secrets.aws, services.emit)
    services.start_up.ended("prompt")
    source, requests = facts[Source], facts[SampledRows].requests
    texts = [grouping.text_of(request) for request in requests]
    if spec.deduplicate:  # the engine is asked once
        texts = list(dict.fromkeys(texts))
    prefix, lengths = grouping.scattered_prefix(texts, source.rows), grouping.sample_of(requests)
    return SurveyedInput(spec, source, tolerance_of(spec, source), store, prefix, lengths)


def check_gpu_prices(spec: BatchInferenceSpec, rows: int, emit: Emit) -> None:
    """Say which prices are missing or misspelt, if the job needs GPUs."""
    if spec.gpu_hour_price and plan.make(spec, rows, cluster := cluster_view.view()).gpus:
        for text in check_prices(spec, spec.accelerator_type, cluster):
            emit(events.Notice(level="warning", message=text))


def checked_engine(facts: Facts) -> CheckedEngine:
    """The engine as it was checked; a batch that ends later is published by it."""
    engine = CheckedEngine(facts[BatchInferenceSpec], facts[ModelCheck], facts.get(Refusal))
    facts.add(engine)
    return engine


def look_for_parts(facts: Facts, surveyed: SurveyedInput, engine: CheckedEngine) -> CheckedJob:
    """Make the job of what was checked, and look for what earlier submissions finished."""
    first_failure(EARLIER, facts)
    job, earlier, refusal = facts[Job], facts[StepLedgers], engine.refusal
    if refusal is not None and surveyed.store is None and not earlier.last.files:
        refusal.unless(earlier.last.good)  # at once, without the keys of all rows
    asked = asked_by(engine.spec, engine.check.generation_defaults, engine.check.digests)
    return CheckedJob(surveyed, engine, job, earlier.last, earlier.before, asked)
