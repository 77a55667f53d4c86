# SPDX-License-Identifier: Apache-2.0
"""The job, step by step: everything that can be refused first, then claim, generate, commit."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.manifest import Digests, Summary
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec, Submission
from airflow_provider_raybatch.job import cluster_view, credentials, parts, pipeline, plan
from airflow_provider_raybatch.job.board import ReplicaReport
from airflow_provider_raybatch.job.commit import commit
from airflow_provider_raybatch.job.engine import echo
from airflow_provider_raybatch.job.journal import Journal
from airflow_provider_raybatch.job.keys import Keyer
from airflow_provider_raybatch.job.ledger import add_up, look_back
from airflow_provider_raybatch.job.limits import Budget, spent
from airflow_provider_raybatch.job.model_check import Checked, check_model
from airflow_provider_raybatch.job.preflight import check_rows, look_at_source
from airflow_provider_raybatch.job.progress import Tracker
from airflow_provider_raybatch.job.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.ray_data_llm.variants import engine_is_here
from airflow_provider_raybatch.job.report import report
from airflow_provider_raybatch.job.request import Request
from airflow_provider_raybatch.job.resume import work
from airflow_provider_raybatch.job.row_ids import check_ids
from airflow_provider_raybatch.job.savings import find_savings
from airflow_provider_raybatch.job.spreading import keys_over_the_cluster, publish_over_the_cluster
from airflow_provider_raybatch.job.storage import folder
from airflow_provider_raybatch.job.tolerance import Tolerance
from airflow_provider_raybatch.job.work import Job

Say = Callable[[events.Event], None]


def run(spec: BatchInferenceSpec, submission: Submission, say: Say) -> tuple[Summary, bool]:
    """Do the job on the Ray cluster that this process is connected to.

    :returns: what was committed, and whether an earlier submission of the same run had done it already.
    :raises RaybatchError: one sentence, with the failure class that decides what follows.
    """
    began = time.time()
    say(events.Phase(phase="preflight", message="checking source, prompt, model, destination and cluster"))
    versions = cluster_view.check_versions()
    if spec.engine.kind == ray_data_llm.NAME:
        ray_data_llm.check(spec)
    known = credentials.fetch(submission.secrets_package)
    destination = folder(spec.destination.uri, known.aws)
    journal = Journal(destination, submission, spec.destination.on_owned_by_other == "take_over")
    committed = journal.committed()
    if committed is not None:
        # The earlier submission may have failed between the journal and this copy.
        destination.write("manifest.json", committed.model_dump_json(by_alias=True, indent=1).encode())
        return committed.summary(), True
    journal.check_owner()
    source = look_at_source(spec, known.aws)
    tolerance = Tolerance(spec.limits, source.rows)
    if spec.source.id_column is not None:
        check_ids(source, spec.source.id_column, known.aws)
    requests = check_rows(spec, source, known.aws, tolerance, say)
    environment = credentials.environment(known)
    checked = _check_engine(spec, requests, environment, say)
    keyer = Keyer(spec, checked.generation_defaults, checked.digests)
    run_folder = parts.run_folder(submission, question(spec, submission, keyer), source.listing.digest)
    job = Job(
        spec=_with_generation_defaults(spec, checked),
        listing=source.listing,
        folder=destination,
        part_folder=f"{run_folder}/{submission.submission_id}",
        keyer=keyer,
        credentials=known.aws,
        environment=environment,
    )
    earlier = look_back(destination, run_folder, source.rows)
    paid = spent(spec.limits, destination, earlier.parts)
    settled = earlier.good | earlier.given_up(spec.limits.max_row_attempts)
    savings = find_savings(job, source, settled, store, keys_over_the_cluster)
    left = int(np.count_nonzero(~(settled | savings.rows)))
    chosen = plan.make(spec, left, cluster_view.view())
    if left:
        cluster_view.wait_for(chosen, spec.limits.cluster_wait, say)
    if (committed := journal.claim()) is not None:
        return committed.summary(), True
    preflight_seconds = time.time() - began
    if earlier.rows:
        done = f"{earlier.rows:,} of {source.rows:,} rows were done by earlier submissions"
        say(events.Notice(message=f"{done}; going on with the rest"))
    if savings.notice:
        say(events.Notice(message=savings.notice))

    adopted = savings.adopt(job, source)
    ledger = [*earlier.parts, *adopted]
    settled |= savings.shared | add_up(destination, adopted, source.rows).good
    items = work(source, chosen.rows_per_chunk, settled, savings.repetitions)
    ran = pipeline.Ran()
    if items:
        left = int(np.count_nonzero(~settled))
        say(events.Phase(phase="starting", message=chosen.sentence(left)))
        tracker = Tracker(source.rows, source.rows - left, time.time())
        budget = Budget(spec.limits, paid, chosen.replicas * chosen.gpus, time.time())

        def check(reports: Sequence[ReplicaReport], progress: events.Progress) -> None:
            tolerance.during(reports)
            budget.check(reports, progress, time.time())

        ran = pipeline.run(job, chosen, items, tracker, say, check)
        ledger += ran.parts

    say(events.Phase(phase="committing", message="publishing the dataset"))
    ledger += savings.fan_out(job, source, ledger)
    tolerance.after(add_up(destination, ledger, source.rows), destination)
    told = report(ran, chosen, began, preflight_seconds)
    told = replace(
        told, digests=checked.digests, versions={**versions, **told.versions}, resumed=earlier.rows
    )
    manifest = commit(
        spec,
        destination,
        journal,
        ledger,
        source.rows,
        told,
        source.schema,
        publisher=publish_over_the_cluster,
    )
    return manifest.summary(), False


def question(spec: BatchInferenceSpec, submission: Submission, keyer: Keyer) -> str:
    """32 hex digits over what decides a response besides its row; to regenerate is another one."""
    of_run = submission.run_token if spec.on_clear == "regenerate" else ""
    content = f"{spec.response_digest}-{keyer.digest}-{of_run}"
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _check_engine(
    spec: BatchInferenceSpec, requests: list[Request], environment: dict[str, str], say: Say
) -> Checked:
    """Check what can be checked of engine and model.

    In a process of its own, on a node with the accelerator: the head may have neither vLLM nor a view of the
    model.
    """
    if spec.engine.kind == "echo":
        echo.check(spec)
    if spec.engine.kind == "echo" or not engine_is_here(spec):
        return Checked(digests=Digests(spec=spec.response_digest))
    options: dict[str, Any] = {"num_cpus": 0, "max_retries": 1}
    node = next((n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Resources"].get("GPU", 0) > 0), None)
    if node is not None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
    checked: Checked = ray.get(ray.remote(check_model).options(**options).remote(spec, requests, environment))
    if checked.overlong:
        text = (
            f"{checked.overlong} of {checked.sampled} sampled prompts are longer than the context of "
            f"{checked.context} tokens (the longest has {checked.longest}); they will be dead letters."
        )
        say(events.Notice(level="warning", message=text))
    return checked


def _with_generation_defaults(spec: BatchInferenceSpec, checked: Checked) -> BatchInferenceSpec:
    """Ray's processor asks vLLM's async engine, which leaves the model's `generation_config` aside."""
    if spec.engine.kind != ray_data_llm.NAME:
        return spec
    return spec.model_copy(update={"sampling": {**checked.generation_defaults, **spec.sampling}})
