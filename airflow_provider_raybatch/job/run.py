# SPDX-License-Identifier: Apache-2.0
"""The job, step by step: everything that can be refused first, then claim, generate, commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import ray

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.manifest import Digests, Summary
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec, Submission
from airflow_provider_raybatch.job import cluster_view, credentials, parts, pipeline, plan
from airflow_provider_raybatch.job.commit import commit, in_sequence
from airflow_provider_raybatch.job.engine import echo
from airflow_provider_raybatch.job.journal import Journal
from airflow_provider_raybatch.job.model_check import Checked, check_model
from airflow_provider_raybatch.job.preflight import check_rows, look_at_source
from airflow_provider_raybatch.job.progress import Tracker
from airflow_provider_raybatch.job.publish import Published, Range, Target, publish
from airflow_provider_raybatch.job.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.ray_data_llm.variants import engine_is_here
from airflow_provider_raybatch.job.replica import Job
from airflow_provider_raybatch.job.report import report
from airflow_provider_raybatch.job.request import Request
from airflow_provider_raybatch.job.resume import look_back, work
from airflow_provider_raybatch.job.storage import folder
from airflow_provider_raybatch.job.tolerance import Tolerance

_PUBLISHERS = 8

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
        return committed.summary(), True
    journal.check_owner()
    source = look_at_source(spec, known.aws)
    tolerance = Tolerance(spec.limits.max_error_fraction, source.rows)
    requests = check_rows(spec, source, known.aws, tolerance, say)
    environment = credentials.environment(known)
    checked = _check_engine(spec, requests, environment, say)
    run_folder = parts.run_folder(spec, source.listing.digest)
    earlier = look_back(destination, run_folder, source.rows)
    left = source.rows - earlier.rows
    chosen = plan.make(spec, left, cluster_view.view())
    items = work(source, chosen.rows_per_chunk, earlier.done)
    if items:
        cluster_view.wait_for(chosen, spec.limits.cluster_wait, say)
    journal.claim()
    preflight_seconds = time.time() - began

    ran = pipeline.Ran()
    if items:
        if earlier.rows:
            done = f"{earlier.rows:,} of {source.rows:,} rows were done by earlier submissions"
            say(events.Notice(message=f"{done}; going on with the rest"))
        say(events.Phase(phase="starting", message=chosen.sentence(left)))
        job = Job(
            spec=_with_generation_defaults(spec, checked),
            listing=source.listing,
            folder=destination,
            part_folder=f"{run_folder}/{submission.submission_id}",
            credentials=known.aws,
            environment=environment,
        )
        tracker = Tracker(source.rows, earlier.rows, time.time())
        ran = pipeline.run(job, chosen, items, tracker, say, tolerance.during)

    say(events.Phase(phase="committing", message="publishing the dataset"))
    ledger = [*earlier.parts, *(one.part for one in ran.done)]
    tolerance.after(ledger, destination)
    told = report(ran, chosen, began, preflight_seconds)
    told = replace(
        told, digests=checked.digests, versions={**versions, **told.versions}, resumed=earlier.rows
    )
    manifest = commit(
        spec, destination, journal, ledger, source.rows, told, source.schema, publisher=_in_parallel
    )
    return manifest.summary(), False


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


def _in_parallel(found: Sequence[Range], target: Target) -> Iterable[Published]:
    """Publish ranges as Ray tasks, a few at a time; they ask for no CPU, so nothing can keep them waiting."""
    if len(found) <= 1:
        yield from in_sequence(found, target)
        return
    task = ray.remote(num_cpus=0)(publish)
    waiting, running = list(found), list[Any]()
    while waiting or running:
        while waiting and len(running) < _PUBLISHERS:
            running.append(task.remote(waiting.pop(0), target))
        yield ray.get(running.pop(0))
