# SPDX-License-Identifier: Apache-2.0
"""The steps of a job, each as a job of its own, and what earlier submissions finished of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.contract.text import hex_digest, json_digest
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.preflight.engine_check import as_checked
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.work import Job


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
    for step in spec.step_specs():
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
                earlier_steps=tuple(jobs),
            )
        )
    return jobs[-1]


def asked_by_steps(steps: Sequence[BatchInferenceSpec], requests: Sequence[Request]) -> list[Request]:
    """Requests of the first rows as engines get them; for later steps, whose rows are not known, one each.

    :param requests: of the first step.
    """
    if not steps[0].step_name or not requests:
        return list(requests)
    unknown = replace(requests[0], sampling={})
    first = [one.of_step(steps[0].step_name, steps[0].sampling) for one in requests]
    return [*first, *(unknown.of_step(step.step_name, step.sampling) for step in steps[1:])]
