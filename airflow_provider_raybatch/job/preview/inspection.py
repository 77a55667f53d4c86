# SPDX-License-Identifier: Apache-2.0
"""Makes the checks of preflight that need no writing, starting or claiming of anything."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.error_budget import Tolerance
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.parts.ledger import Ledger, RowMask, look_back
from airflow_provider_raybatch.job.planning import cluster_view, fit, plan
from airflow_provider_raybatch.job.preflight.condition_check import check_conditions
from airflow_provider_raybatch.job.preflight.engine_check import (
    check_engine,
    tell_of_choices,
    tell_of_memory,
    vllm_is_here,
    wait_for_engine_node,
)
from airflow_provider_raybatch.job.preflight.input_check import (
    SOURCE_CHECKS,
    SampledRows,
    check_rows,
    read_source,
    sample,
    source_notes,
)
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.prompt_check import Refusal, check_later_steps, check_prompts
from airflow_provider_raybatch.job.preflight.ready import journal_of, with_time
from airflow_provider_raybatch.job.preflight.response_model import schema_of_model, with_model
from airflow_provider_raybatch.job.preflight.row_ids import check_ids
from airflow_provider_raybatch.job.preflight.step_jobs import asked_by_steps, checked_job
from airflow_provider_raybatch.job.preflight.tool_check import check_tools
from airflow_provider_raybatch.job.preview.refusals import Refusals
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.run.cpu_tasks import apart_if_users_code
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.ray_data_llm.variants import engine_is_here
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.folder import folder

NOT_TRIED = "not tried, since nothing is written: whether destination and response store can be written"


@dataclass
class Inspected:
    """What was found; ``None`` where an earlier refusal or the cluster leaves it unknown.

    :param spec: as the job would have it when it began now.
    :param sampled: requests of the first rows, and one for each later step.
    :param checked: what the check of engine and model found.
    :param refusal: of the first rows, unless they have an answer.
    :param no_tokens: why tokens can't be counted, if they can't.
    :param job: as the job's driver would hand it to replicas.
    :param earlier: what earlier jobs of the run finished of these requests, of several steps of the first.
    :param finished: the same of the last step.
    :param store: the response store, if the job would search it.
    :param source_fits: whether the source has what the task needs.
    :param engine_fits: whether nothing speaks against engine and model.
    """

    spec: BatchInferenceSpec
    secrets: Secrets
    source: Source | None = None
    sampled: SampledRows | None = None
    checked: ModelCheck | None = None
    refusal: Refusal | None = None
    no_tokens: str = ""
    job: Job | None = None
    earlier: Ledger | None = None
    finished: Ledger | None = None
    store: StoredResponses | None = None
    source_fits: bool = False
    engine_fits: bool = False

    def asked(self, step: int = 0) -> Job:
        """One step of the job, or its one question; where the model is not checked, its keys say nothing.

        :raises ValueError: the source can't be read.
        """
        if self.job is not None:
            return self.job.steps[step]
        if self.source is None:
            raise ValueError("asked: the source could not be read")
        spec = self.spec.step_specs()[step]
        return Job(
            spec=spec,
            listing=self.source.listing,
            folder=folder(self.spec.destination, self.secrets.aws),
            part_folder="",
            keyer=Keyer(spec, {}, Digests()),
            credentials=self.secrets.aws,
            environment=credentials.environment(self.secrets),
        )

    @property
    def unfinished(self) -> int:
        """Rows without an answer of an earlier job of the run."""
        if self.source is None:
            return 0
        done = 0 if self.finished is None else self.finished.rows
        return self.source.rows - done


def inspect(
    spec: BatchInferenceSpec, secrets: Secrets, refusals: Refusals, *, waits: bool = False
) -> Inspected:
    """Look at cluster, destination, source, first rows, engine and model.

    :param refusals: gets a sentence for each problem found, and each phase.
    :param waits: whether it waits for a node with vLLM, as its job would; else the model is not checked where
        no such node runs.
    """
    found = Inspected(spec, secrets)
    submission = spec.submission
    if submission is None:
        raise SpecError("submission: it must be filled before a job is inspected.")
    refusals.note(NOT_TRIED)
    refusals.begin("checking the cluster and the destination")
    with refusals.caught():
        cluster_view.check_versions()
    if spec.engine == ray_data_llm.NAME:
        with refusals.caught():
            ray_data_llm.check_processor(spec)
    journal = journal_of(spec, submission, secrets)
    with refusals.caught():
        journal = _of_the_owner(journal, spec, secrets, refusals)
        journal.check_owner()
        found.spec = with_time(spec, journal)
    found.spec = found.spec.model_copy(
        update={
            "submission": journal.submission,
            "template_time": found.spec.template_time or time.time(),
        }
    )
    if not refusals.passes(_take_model, found):
        return found
    tolerance = _look_at_rows(found, refusals)
    sampled = found.sampled
    if sampled is not None and (sampled.requests or sampled.skipped) and tolerance is not None:
        found.engine_fits = refusals.passes(_look_at_model, found, tolerance, refusals, waits)
    if found.checked is not None:
        with refusals.caught():
            _look_back(found, journal, refusals)
    if found.refusal is not None and found.source is not None:
        no_rows: RowMask = np.zeros(found.source.rows, np.bool_)
        with refusals.caught():
            found.refusal.unless(no_rows if found.earlier is None else found.earlier.good)
    return found


def _of_the_owner(
    journal: Journal, spec: BatchInferenceSpec, secrets: Secrets, refusals: Refusals
) -> Journal:
    """As the task that owns the destination, if it may be the previewed one: a preview has no run."""
    asked, last = journal.submission.task, journal.last()
    if last is None or (asked.dag_id, asked.task_id) not in {
        ("", ""),
        (last.owner.dag_id, last.owner.task_id),
    }:
        return journal
    refusals.note(
        f"destination: it belongs to {last.owner}; what has an answer is shown as for that run, and another "
        "run is refused unless on_destination_owned is 'take_over'"
    )
    owner = {"task": last.owner, "run_token": last.run_token, "submission_id": last.submission_id}
    return journal_of(spec, journal.submission.model_copy(update=owner), secrets)


def _take_model(found: Inspected) -> None:
    """Take the JSON schema of a Pydantic model that `response_format` names."""
    found.spec = with_model(found.spec, apart_if_users_code(found.spec, schema_of_model))


def _look_at_rows(found: Inspected, refusals: Refusals) -> Tolerance | None:
    spec, aws = found.spec, found.secrets.aws
    refusals.begin("listing and reading the source")
    with refusals.caught():
        found.source = read_source(spec, aws, found.secrets.hf_token)
    source = found.source
    if source is None:
        return None
    for sentence in source_notes(source):
        refusals.note(sentence)
    first = spec.step_specs()[0]
    checks = [refusals.passes(check, step, source) for step in spec.step_specs() for check in SOURCE_CHECKS]
    found.source_fits = refusals.passes(check_conditions, spec, source) and all(checks)
    if spec.id_column is not None and spec.id_column in source.columns:
        with refusals.caught():
            check_ids(source, spec.id_column, aws, are_lines=spec.asks_by_lines)
    if not checks[0]:  # that it has the columns of the first prompt
        return None
    tolerance = Tolerance(spec, source.rows, all_may_fail=spec.answers_lines)
    refusals.begin(f"checking prompt and columns, by the first of {count_of(source.rows, 'row')}")
    with refusals.caught():
        sampled = apart_if_users_code(first, sample)(first, source, aws)
        found.sampled = sampled._replace(requests=asked_by_steps(spec.step_specs(), sampled.requests))
        check_tools(spec)
        check_rows(first, lambda: sampled, tolerance, refusals.emit)
    if found.source_fits:
        fits = refusals.passes(check_later_steps, spec, source, aws, tolerance, refusals.emit)
        found.source_fits = fits
    return tolerance


def _look_at_model(found: Inspected, tolerance: Tolerance, refusals: Refusals, waits: bool) -> None:
    spec, sampled = found.spec, found.sampled
    if sampled is None:
        return
    if waits:
        with refusals.caught():
            wait_for_engine_node(spec, False, refusals.emit)
    found.no_tokens = _why_unseen(spec)
    if found.no_tokens:
        refusals.note(found.no_tokens)
        return
    environment = credentials.environment(found.secrets)
    refusals.begin(f"checking engine {spec.engine!r} and model {spec.model!r}")
    with refusals.caught():
        checked = check_engine(spec, sampled.requests, environment, refusals.emit, Launch())
        found.checked = checked
        with refusals.caught():
            found.checked = checked = tell_of_memory(spec, checked, refusals.emit)
        found.refusal = check_prompts(spec, sampled, checked, tolerance, refusals.emit)
        tell_of_choices(spec, checked, sampled.requests, refusals.emit)
    if spec.engine == ray_data_llm.NAME and not engine_is_here(spec):
        found.no_tokens = "tokens are not counted: another server has the tokenizer"


def _why_unseen(spec: BatchInferenceSpec) -> str:
    """Why the model can't be checked now, though the job might run; empty if it can be."""
    if spec.engine == "echo" or not engine_is_here(spec) or vllm_is_here():
        return ""
    if cluster_view.gpu_node(spec.accelerator_type) is not None:
        return ""
    cluster = cluster_view.view()
    one = plan.make(spec, 1, cluster)
    seconds = fit.longest_wait(spec.cluster_wait, cluster.autoscaler is not None, False)
    if not one.gpus:
        return ""
    outlook = "; the job would wait for one" * (fit.assess(one, cluster, seconds > 0).verdict == "wait")
    return "the model was not checked and tokens are not counted: no node that runs now has vLLM" + outlook


def _look_back(found: Inspected, journal: Journal, refusals: Refusals) -> None:
    spec, source, checked = found.spec, found.source, found.checked
    if source is None or checked is None:
        return
    refusals.begin("looking for answers of earlier jobs")
    found.job = job = checked_job(spec, checked, source.listing, journal, found.secrets)
    ledgers = [look_back(journal.folder, step.run_folder, source.rows) for step in job.steps]
    found.earlier, found.finished = ledgers[0], ledgers[-1]
    regenerates = spec.on_clear == "regenerate" and journal.is_cleared()
    if spec.reuse is not None and not regenerates:
        place = folder(spec.reuse, found.secrets.aws)
        found.store = StoredResponses(ResponseStore(place, refusals.emit, spec.reuse_max_age))


def sized(found: Inspected, rows: int, refusals: Refusals) -> plan.Plan | None:
    """The plan for so many rows on the cluster as it is now, and whether that holds it."""
    if found.source is None or found.sampled is None:
        return None
    spec = found.spec
    cluster = cluster_view.view()
    sizing = plan.make(spec, rows, cluster, plan.longest_response(spec, found.sampled.requests))
    seconds = fit.longest_wait(spec.cluster_wait, cluster.autoscaler is not None, False)
    verdict = fit.assess(sizing, cluster, cluster.autoscaler is not None or seconds > 0)
    if verdict.verdict == "never":
        refusals.refuse(verdict.sentence)
    elif verdict.verdict == "wait":
        refusals.note(verdict.sentence)
    return sizing
