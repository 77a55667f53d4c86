# SPDX-License-Identifier: Apache-2.0
"""The plan of a batch inference: its spec, its request, its prices, and what the follower needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.coercion import from_text, given_mapping, is_absent
from airflow_provider_raybatch.contract.arguments.limits import DEFAULT_CURRENCY
from airflow_provider_raybatch.contract.base import seconds_of
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.operators.arguments import spec_of_fields
from airflow_provider_raybatch.operators.handover import has_committed
from airflow_provider_raybatch.operators.parse_check import check_lease, unknown_names
from airflow_provider_raybatch.operators.plan import JobPlan, TaskRun, fingerprint
from airflow_provider_raybatch.places.providers import ClusterDefinition

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest
    from airflow_provider_raybatch.contract.arguments.openai_batch import ServedBatch
    from airflow_provider_raybatch.contract.secrets import Secrets
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.operators.base import RayOperator
    from airflow_provider_raybatch.places.place import Place


def with_prices(spec: BatchInferenceSpec, fields: Mapping[str, Any], place: Place) -> BatchInferenceSpec:
    """The spec with the prices of its GPUs, in their currency.

    The operator's dictionary is merged over the connection's prices; its number replaces them.

    :param fields: of the spec, rendered.
    :raises SpecError: the two have different currencies, or `max_cost` has no price.
    """
    given, of_place = spec.gpu_hour_price, place.gpu_hour_price
    has_currency = not is_absent(fields.get("currency"))
    if isinstance(from_text(fields.get("gpu_hour_price")), Mapping) or given is None:
        in_currency = place.currency or DEFAULT_CURRENCY
        if has_currency and of_place and spec.currency != in_currency:
            raise SpecError(
                f"currency: {spec.currency!r} is given, and the prices of {_in_sentence(place.name)} are in "
                f"{in_currency}; give gpu_hour_price as a number, or leave currency out."
            )
        given = {**(of_place or {}), **(given or {})} or None
    if spec.max_cost is not None and given is None:
        raise SpecError(_no_price(place.name if place.has_prices else None))
    currency = spec.currency if has_currency else place.currency or spec.currency
    return spec.model_copy(update={"gpu_hour_price": given, "currency": currency})


def check_has_price(spec: BatchInferenceSpec, ray_cluster: Any) -> None:
    """Refuse a `max_cost` while the DAG is parsed, where no connection can give a price.

    :raises SpecError: the operator gives none.
    """
    if (
        spec.max_cost is not None
        and spec.gpu_hour_price is None
        and isinstance(ray_cluster, ClusterDefinition)
    ):
        raise SpecError(_no_price(None))


def _no_price(place: str | None) -> str:
    also = "" if place is None else f", or set it in extra of {_in_sentence(place)}"
    return f"max_cost: no price of a GPU hour is known to reckon it by; give gpu_hour_price in limits{also}."


def _in_sentence(name: str) -> str:
    return name[:1].lower() + name[1:] if name.startswith("Connection") else name


def batch_plan(
    operator: RayOperator,
    fields: Mapping[str, Any],
    runtime_env: Any,
    secrets: Secrets | None,
    run: TaskRun,
    served: ServedBatch | None = None,
) -> JobPlan:
    """The plan of `operator` for a run of its task.

    :param fields: of the spec, rendered.
    :param runtime_env: as it was given.
    :param secrets: of the job.
    :param served: the batch of the Batch API that the job answers.
    :raises SpecError: the first mistake in the arguments.
    """
    from airflow_provider_raybatch.cluster.submit.request import with_source_digest
    from airflow_provider_raybatch.hooks.credentials import as_environment

    given = with_prices(with_source_digest(spec_of_fields(fields)), fields, run.place)
    spec = _of_run(given, operator, run, served)
    runtime_env = given_mapping(runtime_env, "runtime_env")
    embedded = run.place.embedded
    travels = secrets.for_no_environment() if secrets and embedded else secrets

    async def finished(client: RayJobsClient, info: JobInfo) -> bool:
        return await has_committed(client, info, run.key_of_job(info.submission_id))

    return JobPlan(
        fingerprint=fingerprint([spec.fingerprint, runtime_env]),
        build=partial(_request, run, spec, travels, runtime_env),
        finished=finished,
        lease_terms=partial(operator.lease_terms, run),
        environment=as_environment(secrets) if embedded else {},
        sizes=spec,
        cluster_wait=spec.cluster_wait,
    )


def _of_run(
    given: BatchInferenceSpec, operator: RayOperator, run: TaskRun, served: ServedBatch | None
) -> BatchInferenceSpec:
    """The spec with what only a run knows; logs what has no effect, or an unknown name.

    :raises SpecError: the job would end itself while it is followed.
    """
    makes_clusters, embedded = run.place.makes_clusters, run.place.embedded
    wait = given.cluster_wait
    if wait is None and makes_clusters:
        wait = seconds_of(operator.ray_cluster.cluster_wait)
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
    if spec.keep_warm and (embedded or makes_clusters):
        what = "private Ray" if embedded else "cluster"
        operator.log.info("keep_warm has no effect here: the task's %s ends with it.", what)
    return spec


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
