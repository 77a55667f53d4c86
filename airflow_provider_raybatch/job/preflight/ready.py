# SPDX-License-Identifier: Apache-2.0
"""All checks before a job pays for anything, in order.

They only read the destination's journal. They write the marker of a response store, the copy of an earlier
submission's manifest, and (deleted again) a file that shows whether the destination keeps jobs apart.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.manifest import BatchManifest, Digests
from airflow_provider_raybatch.contract.record import JobRecord
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.budget import check_cost, check_prices
from airflow_provider_raybatch.job.monitor.error_budget import Tolerance
from airflow_provider_raybatch.job.monitor.money import Money, spent_before
from airflow_provider_raybatch.job.monitor.served_batch import BatchWatch
from airflow_provider_raybatch.job.monitor.start_up import StartUp
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.output.record import Recorder, records_of
from airflow_provider_raybatch.job.output.run_reports import RunReports
from airflow_provider_raybatch.job.parts.ledger import Ledger, RowMask, look_back
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.planning import cluster_view, plan
from airflow_provider_raybatch.job.planning.plan import longest_response
from airflow_provider_raybatch.job.preflight.engine_check import (
    Emit,
    check_engine,
    check_names,
    checked_model,
    tell_of_choices,
    tell_of_memory,
    wait_for_engine_node,
)
from airflow_provider_raybatch.job.preflight.input_check import (
    SampledRows,
    check_rows,
    look_at_source,
    sample,
)
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.prompt_check import Refusal, check_later_steps, check_prompts
from airflow_provider_raybatch.job.preflight.response_model import schema_of_model, with_model
from airflow_provider_raybatch.job.preflight.row_ids import check_ids
from airflow_provider_raybatch.job.preflight.step_jobs import asked_by_steps, checked_job
from airflow_provider_raybatch.job.preflight.tool_check import check_tools
from airflow_provider_raybatch.job.reuse.asked import Asked, asked_by
from airflow_provider_raybatch.job.reuse.hits import Responses
from airflow_provider_raybatch.job.reuse.response_store import open_store
from airflow_provider_raybatch.job.reuse.reuse import ReusePlan
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.row_order import grouping
from airflow_provider_raybatch.job.row_order.grouping import sample_of
from airflow_provider_raybatch.job.run.cpu_tasks import apart_if_users_code
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.watch import Ran
from airflow_provider_raybatch.job.work import CheckedModel, Job
from airflow_provider_raybatch.storage.folder import folder


@dataclass
class JobContext:
    """What the phases of a job share. Each sets what it finds.

    :param spec: as it was submitted, with the schema of its Pydantic model once that was imported; `job.spec`
        is as it was checked.
    :param secrets: credentials that travelled with the job.
    :ivar journal: of the destination.
    :ivar batch: the batch of the Batch API that the job answers, if any.
    :ivar nodes: the request for nodes, until replicas hold them.
    :ivar refusal: too many of the first rows fail, unless they have an answer; no engine starts before.
    :ivar earlier: what earlier submissions finished of the same input and request configuration.
    :ivar earlier_steps: the same of each step before the last one.
    :ivar prefix: and `lengths`: see :func:`~airflow_provider_raybatch.job.row_order.regroup.grouping_for`.
    :ivar resolved: rows that need no request.
    :ivar stored: the response store, where answers may be taken from it.
    :ivar kept: how many rows have a response before replicas begin.
    :ivar sizing: the plan for the `remaining` rows.
    :ivar ledger: the parts of the dataset.
    :ivar records: of all earlier jobs of the task.
    :ivar money: what the run costs.
    :ivar recorder: notes how the job goes, once the destination is claimed.
    :ivar reports: of jobs of the run that publish nothing.
    :ivar may_report: whether the destination is this task's and can be used, as far as is known.
    """

    spec: BatchInferenceSpec
    secrets: Secrets
    emit: Emit
    batch: BatchWatch = field(default_factory=BatchWatch)
    start_up: StartUp = field(default_factory=StartUp)
    launch: Launch = field(default_factory=Launch)
    nodes: ExitStack = field(default_factory=ExitStack)
    versions: dict[str, str] = field(init=False)
    journal: Journal = field(init=False)
    source: Source = field(init=False)
    tolerance: Tolerance = field(init=False)
    store: ResponseStore | None = field(init=False)
    checked: ModelCheck = field(init=False)
    model: CheckedModel = field(init=False)
    refusal: Refusal | None = None
    job: Job = field(init=False)
    earlier: Ledger = field(init=False)
    earlier_steps: list[Ledger] = field(default_factory=list)
    asked: Asked = field(init=False)
    prefix: int = field(init=False)
    lengths: tuple[int, ...] = field(init=False)
    resolved: RowMask = field(init=False)
    reuse: ReusePlan = field(init=False)
    stored: Responses | None = None
    remaining: int = field(init=False)
    sizing: plan.Plan = field(init=False)
    ledger: list[Part] = field(init=False)
    kept: int = field(init=False)
    ran: Ran = field(default_factory=Ran)
    records: list[JobRecord] = field(default_factory=list)
    money: Money = field(default_factory=Money)
    recorder: Recorder = field(default_factory=Recorder)
    reports: RunReports = field(default_factory=RunReports)
    may_report: bool = False


def make_ready(context: JobContext, submission: Submission) -> BatchManifest | None:
    """Check all that can be checked before generation.

    :returns: the dataset, if an earlier submission of this run committed it with the same arguments.
    :raises RaybatchError: one sentence about the first problem found.
    """
    spec = context.spec
    if (committed := open_destination(context, submission)) is not None:
        return committed
    check_cost(context.money)
    context.spec = with_model(spec, apart_if_users_code(spec, schema_of_model))
    sampled = _check_input(context)
    spec = with_time(context.spec, context.journal)
    requests = asked_by_steps(spec.step_specs(), sampled.requests)
    context.checked = _check_model(context, spec, sampled._replace(requests=requests))
    _look_back(context, spec)
    texts = [grouping.text_of(request) for request in sampled.requests]
    if spec.deduplicate:  # the engine is asked once
        texts = list(dict.fromkeys(texts))
    context.prefix = grouping.scattered_prefix(texts, context.source.rows)
    context.lengths = sample_of(sampled.requests)
    return None


def open_destination(context: JobContext, submission: Submission) -> BatchManifest | None:
    """Check that this run may claim the destination, and add up what it has cost.

    :returns: the dataset, if an earlier submission of this run committed it with the same arguments.
    :raises PreflightError: the destination belongs to another task.
    """
    spec = context.spec
    context.versions = cluster_view.check_versions()
    if spec.engine == ray_data_llm.NAME:
        ray_data_llm.check_processor(spec)
    check_names(spec)
    context.journal = journal_of(spec, submission, context.secrets)
    if (committed := context.journal.committed()) is not None:
        return committed
    context.journal.check_owner()
    context.may_report = True
    context.records = records_of(context.journal.folder, layout.task_folder(submission))
    context.money = Money(spec, spent_before(context.records, submission.run_token))
    return None


def journal_of(spec: BatchInferenceSpec, submission: Submission, secrets: Secrets) -> Journal:
    """Of the destination, for a submission."""
    take_over = spec.on_destination_owned == "take_over"
    return Journal(folder(spec.destination, secrets.aws), submission, take_over, spec.fingerprint)


def _check_input(context: JobContext) -> SampledRows:
    """Check source, ids, the first rows, and that destination and response store are writable."""
    spec, aws, journal = context.spec, context.secrets.aws, context.journal
    context.source = look_at_source(spec, aws, context.secrets.hf_token, context.emit)
    context.tolerance = Tolerance(spec, context.source.rows, all_may_fail=spec.answers_lines)
    if spec.id_column is not None:
        check_ids(context.source, spec.id_column, aws, are_lines=spec.asks_by_lines)
    context.start_up.ended("source")
    check_tools(spec)
    first = spec.step_specs()[0]
    take = partial(apart_if_users_code(first, sample), first, context.source, aws)
    sampled = check_rows(first, take, context.tolerance, context.emit)
    check_later_steps(spec, context.source, aws, context.tolerance, context.emit)
    context.may_report = False  # into a store that is refused
    journal.check_conditional_writes()
    context.may_report = True
    context.store = open_store(spec, aws, context.emit)
    context.start_up.ended("prompt")
    return sampled


def _check_model(context: JobContext, spec: BatchInferenceSpec, sampled: SampledRows) -> ModelCheck:
    """Check engine, model and prompts; replicas start meanwhile."""
    journal, emit, launch, requests = context.journal, context.emit, context.launch, sampled.requests
    if not context.source.rows:  # needs neither nodes nor the model
        return ModelCheck(digests=Digests(spec=spec.response_digest))
    _check_prices(spec, context.source.rows, emit)
    environment = credentials.environment(context.secrets)
    launch.early(spec, environment, journal.folder, context.source.rows, longest_response(spec, requests))
    wait_for_engine_node(spec, journal.began_before(), emit, context.batch.check)
    context.start_up.ended("nodes")
    checked = check_engine(spec, requests, environment, emit, launch)
    checked = tell_of_memory(spec, checked, emit)
    context.refusal = check_prompts(spec, sampled, checked, context.tolerance, emit)
    tell_of_choices(spec, checked, requests, emit)
    context.model = checked_model(spec, checked)
    if context.refusal is None:
        launch.load(context.model)
    context.start_up.ended("model")
    return checked


def _check_prices(spec: BatchInferenceSpec, rows: int, emit: Emit) -> None:
    if spec.gpu_hour_price and plan.make(spec, rows, cluster := cluster_view.view()).gpus:
        for text in check_prices(spec, spec.accelerator_type, cluster):
            emit(events.Notice(level="warning", message=text))


def _look_back(context: JobContext, spec: BatchInferenceSpec) -> None:
    """Make the job's request keys, and look for what earlier submissions finished."""
    journal, source, checked = context.journal, context.source, context.checked
    context.job = checked_job(spec, checked, source.listing, journal, context.secrets)
    *earlier, run_folder = (step.run_folder for step in context.job.steps)
    context.earlier_steps = [look_back(journal.folder, one, source.rows) for one in earlier]
    context.earlier = look_back(journal.folder, run_folder, source.rows)
    if context.refusal is not None and context.store is None and not context.earlier.files:
        context.refusal.unless(context.earlier.good)  # at once, without the keys of all rows
    context.asked = asked_by(spec, checked.generation_defaults, checked.digests)


def with_time(spec: BatchInferenceSpec, journal: Journal) -> BatchInferenceSpec:
    """Let chat templates print the run's date, so that a retry makes the same requests."""
    return spec.model_copy(update={"template_time": journal.run_began() or time.time()})
