# SPDX-License-Identifier: Apache-2.0
"""Makes the checks of a job, as far as they write, start and claim nothing, and goes on after a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from airflow_provider_raybatch.contract.events import Event, Notice, Phase
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of, without_queries
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.control.process import Driver
from airflow_provider_raybatch.job.failures.diagnosis import diagnose
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.money import Money
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.planning import cluster_view, fit, plan
from airflow_provider_raybatch.job.preflight import engine_check, ready
from airflow_provider_raybatch.job.preflight.check import Facts, all_failures
from airflow_provider_raybatch.job.preflight.checked_job import (
    Services,
    StepLedgers,
    journal_of,
    with_time,
)
from airflow_provider_raybatch.job.preflight.column_check import COLUMN_CHECKS
from airflow_provider_raybatch.job.preflight.input_check import SampledRows
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.prompt_check import Refusal
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.ray_data_llm.variants import engine_is_here
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.folder import folder

NOT_TRIED = "not tried, since nothing is written: whether destination and response store can be written"


class Refusals:
    """Sentences so far, each once.

    :param forward: gets each :class:`Phase` at once.
    :ivar sentences: why the job would be refused.
    :ivar notices: what else it would say.
    """

    def __init__(self, forward: Callable[[Event], object]) -> None:
        self._forward = forward
        self.sentences: list[str] = []
        self.notices: list[str] = []

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Around a check: its error becomes a sentence. A defect of this package is still raised."""
        try:
            yield
        except Exception as error:
            failure_class, sentence = diagnose(error)
            if failure_class is FailureClass.INTERNAL:
                raise
            self.refuse(without_queries(sentence))

    def refuse(self, sentence: str) -> None:
        """Add a sentence."""
        if sentence not in self.sentences:
            self.sentences.append(sentence)

    def withdraw(self, *beginnings: str) -> None:
        """Forget sentences that a later one says better."""
        self.sentences = [one for one in self.sentences if not one.startswith(beginnings)]

    def note(self, sentence: str) -> None:
        """Add a notice."""
        if sentence not in self.notices:
            self.notices.append(sentence)

    def emit(self, event: Event) -> None:
        """As a job's: notices are kept, phases are forwarded, progress is dropped."""
        if isinstance(event, Notice):
            self.note(event.message)
        elif isinstance(event, Phase):
            self._forward(event)

    def begin(self, check: str) -> None:
        """Say which check begins, since it may take minutes."""
        self.emit(Phase(phase="preflight", message=check))


@dataclass(frozen=True)
class Uncounted:
    """Tokens can't be counted.

    :param reason: why not, as a notice.
    """

    reason: str


def inspect(driver: Driver, refusals: Refusals, *, waits: bool = False) -> Facts:
    """Look at cluster, destination, source, first rows, engine and model.

    :param refusals: gets a sentence for each problem found, and each phase.
    :param waits: whether it waits for a node with vLLM, as its job would; else the model is not checked where
        no such node runs.
    :returns: what was found, without what a failure or the cluster leaves unknown.
    """
    refusals.note(NOT_TRIED)
    refusals.begin("checking the cluster and the destination")
    facts = Facts(driver.spec)
    all_failures(ready.SOFTWARE, facts, refusals.caught)
    _open(facts, driver, refusals)
    all_failures([ready.OWNER, ready.RESPONSE_MODEL], facts, refusals.caught)
    if ready.RESPONSE_MODEL in facts.failed:
        return facts
    refusals.begin("listing and reading the source")
    all_failures(ready.SOURCE, facts, refusals.caught)
    if not facts.allow(ready.SAMPLE):
        return facts
    rows = facts[Source].rows
    refusals.begin(f"checking prompt and columns, by the first of {count_of(rows, 'row')}")
    all_failures(ready.PROMPT, facts, refusals.caught)
    sampled = facts.get(SampledRows)
    if sampled is not None and (sampled.requests or sampled.skipped):
        facts.add(sampled.of_all_steps(facts[BatchInferenceSpec]))
        _check_engine(facts, refusals, waits)
    if facts.get(ModelCheck) is not None:
        refusals.begin("looking for answers of earlier jobs")
        all_failures(ready.EARLIER, facts, refusals.caught)
    if (refusal := facts.get(Refusal)) is not None:
        ledgers = facts.get(StepLedgers)
        answered: RowMask = np.zeros(rows, np.bool_) if ledgers is None else ledgers.first.good
        with refusals.caught():
            refusal.unless(answered)
    return facts


def _open(facts: Facts, driver: Driver, refusals: Refusals) -> None:
    """Find the destination, and let chat templates print the date of a job that began now."""
    spec, secrets = driver.spec, driver.secrets
    journal = journal_of(spec, driver.submission, secrets)
    timed = spec.model_copy(update={"template_time": time.time()})
    with refusals.caught():
        journal = _of_the_owner(journal, spec, secrets, refusals)
        timed = with_time(spec, journal)
    facts.add(timed.model_copy(update={"submission": journal.submission}))
    facts.add(Services(refusals.emit, secrets, journal, Money(spec)))


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


def _check_engine(facts: Facts, refusals: Refusals, waits: bool) -> None:
    spec = facts[BatchInferenceSpec]
    if waits:
        with refusals.caught():
            engine_check.wait_for_engine_node(spec, False, refusals.emit)
    if unseen := _why_unseen(spec):
        refusals.note(unseen)
        facts.add(Uncounted(unseen))
        return
    refusals.begin(f"checking engine {spec.engine!r} and model {spec.model!r}")
    all_failures(ready.ENGINE, facts, refusals.caught)
    if spec.engine == ray_data_llm.NAME and not engine_is_here(spec):
        facts.add(Uncounted("tokens are not counted: another server has the tokenizer"))


def _why_unseen(spec: BatchInferenceSpec) -> str:
    """Why the model can't be checked now, though the job might run; empty if it can be."""
    if spec.engine == "echo" or not engine_is_here(spec) or engine_check.vllm_is_here():
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


def would_run(facts: Facts) -> bool:
    """Whether source and engine fit the job; its destination may still belong to another task."""
    checks = (*COLUMN_CHECKS, ready.LATER_STEPS, *ready.ENGINE)
    return facts.get(Job) is not None and facts.failed.isdisjoint(checks)


def asked(facts: Facts, step: int = 0) -> Job:
    """One step of the job, or its one question; where the model is not checked, its keys say nothing.

    The source must be known.
    """
    if (job := facts.get(Job)) is not None:
        return job.questions[step]
    services, spec = facts[Services], facts[BatchInferenceSpec].questions()[step]
    return Job(
        spec=spec,
        listing=facts[Source].listing,
        folder=services.journal.folder,
        part_folder="",
        keyer=Keyer(spec, {}, Digests()),
        credentials=services.secrets.aws,
        environment=credentials.environment(services.secrets),
    )


def unfinished(facts: Facts) -> int:
    """Rows without an answer of an earlier job of the run."""
    source, ledgers = facts.get(Source), facts.get(StepLedgers)
    return 0 if source is None else source.rows - (0 if ledgers is None else ledgers.last.rows)


def store_of(facts: Facts) -> StoredResponses | None:
    """The response store, if the job would search it."""
    services, spec = facts[Services], facts[BatchInferenceSpec]
    if spec.reuse is None or (spec.on_clear == "regenerate" and services.journal.is_cleared()):
        return None
    place = folder(spec.reuse, services.secrets.aws)
    return StoredResponses(ResponseStore(place, services.emit, spec.reuse_max_age))


def sized(facts: Facts, rows: int, refusals: Refusals) -> plan.Plan | None:
    """The plan for so many rows on the cluster as it is now, and whether that holds it."""
    if (sampled := facts.get(SampledRows)) is None:
        return None
    spec, cluster = facts[BatchInferenceSpec], cluster_view.view()
    sizing = plan.make(spec, rows, cluster, plan.longest_response(spec, sampled.requests))
    seconds = fit.longest_wait(spec.cluster_wait, cluster.autoscaler is not None, False)
    verdict = fit.assess(sizing, cluster, cluster.autoscaler is not None or seconds > 0)
    if verdict.verdict == "never":
        refusals.refuse(verdict.sentence)
    elif verdict.verdict == "wait":
        refusals.note(verdict.sentence)
    return sizing
