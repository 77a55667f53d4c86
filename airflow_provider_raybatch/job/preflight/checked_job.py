# SPDX-License-Identifier: Apache-2.0
"""What checks find of a job: its input, its engine, and each of its steps as a job of its own.

And the live objects that checks and phases use.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.contract.text import hex_digest, json_digest
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.budgets import Tolerance
from airflow_provider_raybatch.job.monitor.money import Money
from airflow_provider_raybatch.job.monitor.served_batch import BatchWatch
from airflow_provider_raybatch.job.monitor.start_up import StartUp
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.output.record import Recorder
from airflow_provider_raybatch.job.output.run_reports import RunReports
from airflow_provider_raybatch.job.parts.ledger import Ledger
from airflow_provider_raybatch.job.preflight.engine_check import Emit, as_checked, checked_model
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.prompt_check import Refusal
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.reuse.asked import Asked
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.work import CheckedModel, Job
from airflow_provider_raybatch.storage.folder import folder


@dataclass(frozen=True)
class Services:
    """The live objects of one job, made once. Each changes by its own methods alone.

    :param emit: writes an event to the driver's log.
    :param secrets: credentials that travelled with the job.
    :param batch: the batch of the Batch API that the job answers, if any.
    :param nodes: the request for nodes, until replicas hold them.
    :param recorder: notes how the job goes, once the destination is claimed.
    """

    emit: Emit
    secrets: Secrets
    journal: Journal
    money: Money
    batch: BatchWatch = field(default_factory=BatchWatch)
    start_up: StartUp = field(default_factory=StartUp)
    launch: Launch = field(default_factory=Launch)
    nodes: ExitStack = field(default_factory=ExitStack)
    recorder: Recorder = field(default_factory=Recorder)
    reports: RunReports = field(default_factory=RunReports)


@dataclass(frozen=True)
class SurveyedInput:
    """The input, whose first rows have passed their checks.

    :param spec: as it was submitted, with the schema of its Pydantic model.
    :param tolerance: how many rows may fail.
    :param store: the response store, if the job has one.
    :param prefix: and `lengths`: see
        :func:`~airflow_provider_raybatch.job.row_order.rows_to_do.grouping_for`.
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
class StepLedgers:
    """What earlier submissions finished of the same input and requests.

    :param before: of each step before the last one.
    """

    before: tuple[Ledger, ...]
    last: Ledger

    @property
    def first(self) -> Ledger:
        """The ledger of the first step."""
        return (*self.before, self.last)[0]


@dataclass(frozen=True)
class CheckedJob:
    """A job that has passed all checks.

    :param job: as replicas get it.
    :param earlier: what earlier submissions finished of its last step; `before` of the steps before.
    :param asked: what the requests depend on.
    """

    surveyed: SurveyedInput
    engine: CheckedEngine
    job: Job
    earlier: Ledger
    before: Sequence[Ledger]
    asked: Asked


def journal_of(spec: BatchInferenceSpec, submission: Submission, secrets: Secrets) -> Journal:
    """The journal of the destination, for a submission."""
    take_over = spec.on_destination_owned == "take_over"
    return Journal(folder(spec.destination, secrets.aws), submission, take_over, spec.fingerprint)


def with_time(spec: BatchInferenceSpec, journal: Journal) -> BatchInferenceSpec:
    """Let chat templates print the run's date, so that a retry makes the same requests."""
    return spec.model_copy(update={"template_time": journal.run_began() or time.time()})


def request_config_digest(spec: BatchInferenceSpec, submission: Submission, keyer: Keyer) -> str:
    """32 hex digits over everything but the row that decides a response.

    With ``on_clear='regenerate'`` also over the run, so that no response of an earlier run counts.
    """
    of_run = submission.run_token if spec.on_clear == "regenerate" else ""
    of_parts = f"{spec.keep_images}-{spec.on_blank}"  # whether parts have the images, and blank rows
    return hex_digest(f"{spec.response_digest}-{keyer.digest}-{of_run}-{of_parts}")


def checked_job(
    spec: BatchInferenceSpec, checked: ModelCheck, listing: Listing, journal: Journal, secrets: Secrets
) -> Job:
    """The job, which is its last step and knows those before it.

    A part of a step counts while this step and those before it are the same: another judge's prompt leaves
    what it judges.

    :param journal: of the destination, with the submission.
    """
    jobs: list[Job] = []
    chain = ""
    for step in spec.questions():
        keyer = Keyer(step, checked.generation_defaults, checked.digests)
        digest = request_config_digest(step, journal.submission, keyer)
        chain = json_digest([chain, digest, step.question.step.decides])
        run_folder = layout.run_folder(journal.submission, chain, listing.digest)
        jobs.append(
            Job(
                spec=as_checked(step, checked),
                listing=listing,
                folder=journal.folder,
                part_folder=layout.driver_folder(run_folder, journal.submission.submission_id),
                keyer=keyer,
                credentials=secrets.aws,
                environment=credentials.environment(secrets),
                before=tuple(jobs),
            )
        )
    return jobs[-1]
