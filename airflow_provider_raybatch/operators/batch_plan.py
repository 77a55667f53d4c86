# SPDX-License-Identifier: Apache-2.0
"""The plan of a batch inference: its spec, its request and what the follower needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.coercion import given_mapping
from airflow_provider_raybatch.contract.durations import seconds_of
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.operators.arguments import build_spec
from airflow_provider_raybatch.operators.handover import has_committed
from airflow_provider_raybatch.operators.parse_check import check_lease, unknown_names
from airflow_provider_raybatch.operators.plan import JobPlan, TaskRun, fingerprint
from airflow_provider_raybatch.operators.prices import with_prices

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest
    from airflow_provider_raybatch.contract.arguments.openai_batch import ServedBatch
    from airflow_provider_raybatch.contract.secrets import Secrets
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.operators.base import RayOperator


def batch_plan(
    operator: RayOperator,
    arguments: Mapping[str, Any],
    runtime_env: Any,
    secrets: Secrets | None,
    run: TaskRun,
    served: ServedBatch | None = None,
) -> JobPlan:
    """The plan of `operator` for a run of its task.

    :param arguments: rendered, those of the spec.
    :param runtime_env: as it was given.
    :param secrets: of the job.
    :param served: the batch of the Batch API that the job answers.
    :raises SpecError: the first mistake in the arguments.
    """
    from airflow_provider_raybatch.cluster.submit.request import with_source_digest
    from airflow_provider_raybatch.hooks.credentials import as_environment

    given = with_prices(with_source_digest(build_spec(arguments)), arguments, run.place)
    made = run.place.makes_clusters
    wait = seconds_of(operator.ray_cluster.cluster_wait) if made else None
    wait = wait if given.cluster_wait is None else given.cluster_wait
    filled_in = {
        "deadline": run.deadline.earlier,
        "cluster_wait": wait,
        "last_run": run.before(),
        "served_batch": served,
    }
    spec = given.model_copy(update=filled_in)
    check_lease(spec.orphan_timeout, operator.poll_interval)
    for text in unknown_names(spec):
        operator.log.warning("%s", text)
    runtime_env = given_mapping(runtime_env, "runtime_env")
    embedded = run.place.embedded
    travels = secrets.for_no_environment() if secrets and embedded else secrets
    if spec.keep_warm and (embedded or made):
        what = "private Ray" if embedded else "cluster"
        operator.log.info("keep_warm has no effect here: the task's %s ends with it.", what)

    async def finished(client: RayJobsClient, info: JobInfo) -> bool:
        return await has_committed(client, info, run.key_of_job(info.submission_id))

    return JobPlan(
        fingerprint=fingerprint([spec.fingerprint, runtime_env]),
        build=partial(_request, run, spec, travels, runtime_env),
        finished=finished,
        lease_terms=partial(operator.lease_terms, run),
        environment=as_environment(secrets) if embedded else {},
        sizes=spec,
        cluster_wait=wait,
    )


async def _request(
    run: TaskRun,
    spec: BatchInferenceSpec,
    secrets: Secrets | None,
    runtime_env: Mapping[str, Any] | None,
    client: RayJobsClient,
    submission_id: str,
) -> JobRequest:
    from airflow_provider_raybatch.cluster.submit.request import build_batch_request

    submission = Submission(task=run.task, run_token=run.run_token, submission_id=submission_id)
    return await build_batch_request(
        client,
        spec.model_copy(update={"submission": submission}),
        key=run.key_of_job(submission_id),
        secrets=secrets,
        seal_key=run.place.secret_seal_key,
        runtime_env=runtime_env,
    )
