# SPDX-License-Identifier: Apache-2.0
"""The steps of a job, each as a job of its own, and what earlier submissions finished of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.digest import json_digest
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.folder import Folder


def keyers(
    steps: Sequence[BatchInferenceSpec], defaults: Mapping[str, Any], digests: Digests
) -> Iterator[tuple[BatchInferenceSpec, Keyer]]:
    """What makes the keys of each step.

    :param defaults: sampling parameters of the model's `generation_config`.
    """
    seen: Counter[str] = Counter()
    for step in steps:
        keyer = Keyer(step, defaults, digests)
        digest = keyer.digest
        if seen[digest] and not keyer.may_be_greedy:
            keyer = Keyer(step, defaults, digests, again=seen[digest])
        seen[digest] += 1
        yield step, keyer


def step_jobs(
    steps: Sequence[tuple[BatchInferenceSpec, Keyer, str]],
    submission: Submission,
    listing: Listing,
    folder: Folder,
    secrets: Secrets,
) -> Job:
    """The job, which is its last step and knows those before it.

    A part of a step counts while this step and those before it are the same: another judge's prompt leaves
    what it judges.

    :param steps: of each, its spec as it was checked, what makes its keys, and what decides its responses.
    """
    jobs: list[Job] = []
    chain = ""
    for spec, keyer, digest in steps:
        asked = spec.asked_step
        chain = digest if asked is None else json_digest([chain, digest, asked.step.decides])
        run_folder = layout.run_folder(submission, chain, listing.digest)
        jobs.append(
            Job(
                spec=spec,
                listing=listing,
                folder=folder,
                part_folder=layout.driver_folder(run_folder, submission.submission_id),
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
    if steps[0].asked_step is None or not requests:
        return list(requests)
    first = [replace(one, sampling={**steps[0].sampling, **one.sampling}) for one in requests]
    return [*first, *(replace(requests[0], sampling=dict(step.sampling)) for step in steps[1:])]
