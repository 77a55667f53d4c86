# SPDX-License-Identifier: Apache-2.0
"""The job, phase by phase: check, reuse, claim, generate, publish and store, clean up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import BatchManifest, Digests, Summary
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.contract.text import without_queries
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.control.process import Driver, drive
from airflow_provider_raybatch.job.failures.diagnosis import diagnose
from airflow_provider_raybatch.job.failures.public_reasons import guarded, public_error
from airflow_provider_raybatch.job.monitor.budgets import check_cost
from airflow_provider_raybatch.job.monitor.money import Money
from airflow_provider_raybatch.job.monitor.served_batch import BatchWatch
from airflow_provider_raybatch.job.output.after_commit import renew_copy, renew_report_copies
from airflow_provider_raybatch.job.output.dead_letters import with_rows_left
from airflow_provider_raybatch.job.output.record import new_record
from airflow_provider_raybatch.job.output.report import replica_stats
from airflow_provider_raybatch.job.output.unfinished import Known
from airflow_provider_raybatch.job.parts.ledger import mark_damaged
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.parts.reading import DamagedPartError
from airflow_provider_raybatch.job.phases import generating, publishing, reusing
from airflow_provider_raybatch.job.planning.cluster_view import check_versions
from airflow_provider_raybatch.job.planning.plan import Plan, longest_response
from airflow_provider_raybatch.job.preflight import ready
from airflow_provider_raybatch.job.preflight.check import Facts, first_failure
from airflow_provider_raybatch.job.preflight.checked_job import (
    CheckedEngine,
    CheckedJob,
    Services,
    journal_of,
    with_time,
)
from airflow_provider_raybatch.job.preflight.engine_check import Emit, wait_for_engine_node
from airflow_provider_raybatch.job.preflight.input_check import SampledRows
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.reuse.asked import Asked
from airflow_provider_raybatch.job.work import Job, Ran


def main(arguments: Sequence[str]) -> int:
    """Run the job of the spec file in `arguments`; return the exit status."""
    return drive(arguments[0], _run)


def _run(driver: Driver) -> None:
    run(driver.spec, driver.submission, driver.emit, driver.secrets, driver.control)


def run(
    spec: BatchInferenceSpec,
    submission: Submission,
    emit: Emit,
    secrets: Secrets | None = None,
    control: Control | None = None,
) -> Summary:
    """Do the job on the Ray cluster that this process is connected to.

    :param secrets: credentials that travelled with the job; by default none.
    :param control: what ends the job early; by default only the spec's deadline.
    :returns: what was committed; emitted before, since the last steps may be slow.
    :raises RaybatchError: one sentence, with the failure class that decides what follows.
    """
    secrets, control = secrets or Secrets(), control or Control(spec, emit)
    batch = BatchWatch(spec.served_batch, secrets.aws)
    services = Services(emit, secrets, journal_of(spec, submission, secrets), Money(spec), batch)
    phases = JobPhases(spec, services, control)
    emit(events.Phase(phase="preflight", message="checking source, prompt, model, destination and cluster"))
    try:
        with (
            guarded(spec.shows_rows),
            services.launch,
            services.nodes,
            services.recorder,
            services.start_up.saying(emit),
            batch.looking(),
        ):
            return phases.run()
    except Exception as error:
        with suppress(Exception):  # what ended the job matters more
            phases.report_failure(error)
        raise


class JobPhases:
    """Runs the phases of a job in order, and keeps what they return; ``None`` is not known yet.

    A job that fails is reported, and a batch that is over is published, by what is known by then.
    """

    def __init__(self, spec: BatchInferenceSpec, services: Services, control: Control) -> None:
        self._spec, self._services, self._control = spec, services, control
        self._facts = Facts(spec, services)
        self._records: Sequence[JobRecord] | None = None
        self._job: Job | None = None
        self._asked: Asked | None = None
        self._plan: Plan | None = None
        self._ran = Ran()

    def run(self) -> Summary:
        """Run all phases; if the batch has ended, before or meanwhile, only publish."""
        batch = self._services.batch
        if not batch.asks_no_more:
            try:
                return self._answer()
            except Exception as error:
                if not batch.is_ended_by(error):
                    raise
        return self._end_batch() or self._answer()

    def _answer(self) -> Summary:
        """Give each row an answer, and publish them."""
        batch, self._facts = self._services.batch, Facts(self._spec, self._services)
        batch.check()
        if (committed := self._open()) is not None:
            return _found_committed(self._services, committed)
        checked = self._check()
        source = checked.surveyed.source
        try:
            batch.check()
            kept = self._reuse(checked)
            if isinstance(kept, BatchManifest):
                return _found_committed(self._services, kept)
            return self._generate(checked, *kept)
        except Exception as error:
            if batch.is_ended_by(error, lambda: publishing.is_answered(checked.job, source)):
                raise
            failure = self._noted(error, checked.job, source.rows)
            if failure is error:
                raise
            raise failure from error

    def _open(self) -> BatchManifest | None:
        """Open the destination, unless it has the dataset."""
        found = ready.open_destination(self._facts)
        if isinstance(found, BatchManifest):
            return found
        self._records = found
        return None

    def _check(self) -> CheckedJob:
        """Check all that can be checked before generation."""
        facts = self._facts
        check_cost(self._services.money)
        first_failure([ready.RESPONSE_MODEL], facts)
        self._spec = facts[BatchInferenceSpec]
        surveyed = ready.survey_input(facts)
        engine = self.check_engine(facts, surveyed.source.rows)
        checked = ready.look_for_parts(facts, surveyed, engine)
        self._job, self._asked = checked.job, checked.asked
        return checked

    def check_engine(self, facts: Facts, rows: int) -> CheckedEngine:
        """Check engine, model and prompts. Replicas start before, and load the model once it has passed.

        :param rows: of the input.
        """
        services, journal = self._services, self._services.journal
        emit, launch = services.emit, services.launch
        spec = with_time(facts[BatchInferenceSpec], journal)
        facts.add(spec)
        if not rows:  # needs neither nodes nor the model
            facts.add(ModelCheck(digests=Digests(spec=spec.response_digest)))
            return ready.checked_engine(facts)
        sampled = facts[SampledRows].of_all_steps(spec)
        facts.add(sampled)
        ready.check_gpu_prices(spec, rows, emit)
        environment = credentials.environment(services.secrets)
        launch.early(spec, environment, journal.folder, rows, longest_response(spec, sampled.requests))
        wait_for_engine_node(spec, journal.began_before(), emit, services.batch.check)
        services.start_up.ended("nodes")
        first_failure(ready.ENGINE, facts)
        engine = ready.checked_engine(facts)
        if engine.refusal is None:
            launch.load(engine.model)
        services.start_up.ended("model")
        return engine

    def _reuse(self, checked: CheckedJob) -> tuple[reusing.KeptAnswers, Plan] | BatchManifest:
        """Find answers, claim the destination, and write what was found.

        :returns: the answers, with the plan for the other rows; or the dataset, if another submission of this
            run has published it meanwhile.
        """
        services, spec, job = self._services, self._spec, checked.job
        launch, refusal = services.launch, checked.engine.refusal
        found = reusing.find_answers(services, checked)
        if refusal is not None:
            refusal.unless(checked.earlier.good | found.reuse.rows)
            launch.load(checked.engine.model)
        self._plan = plan = launch.plan(spec, found.remaining)
        services.start_up.ended("earlier")
        if not job.before:  # else more answers may be found
            reusing.wait_for_nodes(services, spec, found.remaining, plan)
        if (committed := reusing.claim(services, spec, job, checked.surveyed.source.rows)) is not None:
            return committed
        found = reusing.write_cached(services, checked, found)
        kept = reusing.keep_answers(services, checked, found)
        self._job = kept.job
        if kept.remaining != found.remaining:
            # The store's index names them, but their data was gone or unreadable.
            self._plan = plan = launch.plan(spec, kept.remaining)
        if job.before:
            reusing.wait_for_nodes(services, spec, kept.remaining, plan)
        return kept, plan

    def _generate(self, checked: CheckedJob, kept: reusing.KeptAnswers, plan: Plan) -> Summary:
        """Generate the answers that are missing, and publish all."""
        services, parts, source = self._services, kept.parts, checked.surveyed.source
        ran = generating.generate(services, self._control, self._records or (), checked, kept, plan)
        if ran is not None:
            self._ran = ran
            generating.check_generated(services, checked, kept.tolerance, ran)
            parts = [*parts, *ran.parts]
        known = self._spec, source, checked.engine.check, kept.job, plan, kept.tolerance
        return self._publish(publishing.Publication(*known), parts)

    def _publish(self, made: publishing.Publication, parts: Sequence[Part]) -> Summary:
        """Publish what is finished, and clean up."""
        manifest = publishing.publish_rows(
            self._services, self._control, made, parts, self._ran, self._asked, self._records or ()
        )
        publishing.clean_up(self._services)
        self._services.recorder.end()
        return manifest.summary()

    def _end_batch(self) -> Summary | None:
        """Publish what is finished of a batch that is decided, without an engine.

        :returns: ``None`` if the batch is complete and an answer is lost; then its row is asked again.
        """
        services, spec = self._services, self._spec
        generating.end_replicas(services, spec, self._plan)
        services.nodes.close()
        committed = self._open() if self._records is None else services.journal.committed()
        if committed is not None:
            return _found_committed(self._services, committed)
        made = publishing.look_up(self._facts, spec, self._job, self._plan)
        self._job, self._plan, rows = made.job, made.plan, made.source.rows
        has_claimed = services.recorder.record is not None
        if not has_claimed and (committed := reusing.claim(services, spec, made.job, rows)) is not None:
            return _found_committed(self._services, committed)
        services.recorder.spent(services.money.own_gpu_seconds)
        try:
            parts = publishing.add_unanswered(services, made)
            return None if parts is None else self._publish(made, parts)
        except Exception as error:
            self._noted(error, made.job)
            raise

    def _noted(self, error: Exception, job: Job, rows: int | None = None) -> Exception:
        """Note in the job's record why it fails.

        :param rows: rows of the input, if the dead letters of those that are left are to be written.
        :returns: the error as users see it.
        """
        if isinstance(error, DamagedPartError):
            for step in job.questions:
                mark_damaged(step.folder, step.run_folder)
        failure = error if self._spec.shows_rows else public_error(error)
        if rows is not None:
            failure = with_rows_left(failure, job, rows)
        failure_class, sentence = diagnose(failure)
        self._services.recorder.end(without_queries(sentence), failure_class)
        return failure

    def report_failure(self, error: Exception) -> None:
        """Write the report of a job that fails, unless the destination is another's."""
        recorder, journal = self._services.recorder, self._services.journal
        failure_class, sentence = diagnose(error)
        if failure_class is FailureClass.SUPERSEDED or not journal.may_report:
            return
        shown = {} if self._plan is None else self._plan.shown()
        own = recorder.record
        record = own or new_record(self._spec, journal.submission, self._services.start_up.began)
        known = {"at": time.time(), "failure": without_queries(sentence), "failure_class": failure_class}
        self._services.reports.failed(
            journal.folder,
            journal.submission.task,
            record.model_copy(update=known),
            Known(self._spec, shown, check_versions(), replica_stats(recorder.reports)),
            journal.check if own is not None else journal.check_owner,
            self._job.part_folder if own is not None and self._job is not None else None,
        )


def _found_committed(services: Services, manifest: BatchManifest) -> Summary:
    """Report the dataset of an earlier submission of this run, which may have failed to."""
    journal = services.journal
    renew_copy(journal.folder, journal)
    renew_report_copies(journal.folder, journal)
    services.emit(events.Committed(summary=manifest.summary(), reused=True))
    return manifest.summary()
