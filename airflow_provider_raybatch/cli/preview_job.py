# SPDX-License-Identifier: Apache-2.0
"""What `preview` and `plan` share: a preview job reports on the batch inference that the options name."""

from __future__ import annotations

import secrets as random_tokens
import sys
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from airflow_provider_raybatch.cli.task_of import BatchTask, batch_task
from airflow_provider_raybatch.cli.terminal import masked, quietly
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.contract.events import Event
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.preview import PreviewRequest
from airflow_provider_raybatch.contract.submission import Submission, TaskKey
from airflow_provider_raybatch.contract.text import clean


def run_preview_job(options: Namespace, wanted: PreviewRequest) -> tuple[BatchTask, list[Event]]:
    """Run a preview job over the connection of the task; return its rows and its last event, without secrets.

    What it waits for is written to stderr meanwhile.

    :raises RaybatchError: the options can't be used, the cluster can't be reached, or the job failed.
    """
    if not options.timeout > 0:
        raise SpecError(f"timeout: it must be more than 0 seconds, but it is {options.timeout:g}.")
    task = _with_note(batch_task(options), wanted)
    if wanted.ask and task.spec.engine == "ray_data_llm":
        raise SpecError(
            "ask: engine 'ray_data_llm' is a pipeline of Ray's, which a preview can't ask; leave --ask out, "
            "or run the task with limit=20."
        )
    return task, [masked(event) for event in quietly(lambda: _looked(task, wanted, options.timeout))]


def _with_note(task: BatchTask, wanted: PreviewRequest) -> BatchTask:
    """The task; of one with steps the note says what is shown, since later steps ask about answers."""
    steps = task.spec.steps or []
    if len(steps) < 2:
        return task
    first, others = f"step {steps[0].name!r}, the first of {len(steps)}", "later ones read its answers"
    note = f"steps: prompts and tokens are those of {first}; {others}, and are shown with "
    note += "them" if wanted.ask else "--ask"
    if wanted.verb == "plan":
        note = "steps: an answer that a prompt reads counts as one token, and what `each` asks about once"
    return replace(task, notes=(*task.notes, f"{note}."))


def _looked(task: BatchTask, wanted: PreviewRequest, timeout: float) -> list[Event]:
    from airflow_provider_raybatch.cluster.follow.preview import run_preview
    from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.submit.request import build_preview_request
    from airflow_provider_raybatch.hooks.credentials import as_environment, job_secrets
    from airflow_provider_raybatch.hooks.installation import known_installation_id
    from airflow_provider_raybatch.hooks.ray import RayHook

    connection = RayHook(task.ray_conn_id).read()
    secrets = job_secrets(task.aws_conn_id, task.hf_conn_id)
    travels = secrets.for_no_environment() if secrets and connection.embedded else secrets
    name, key = f"raybatch-{wanted.verb}-{random_tokens.token_hex(4)}", random_tokens.token_hex(32)
    dag_id, task_id = task.names
    # In the namespace of the task's own jobs, whose warm engines it may take.
    namespace = connection.namespace or known_installation_id() or "default"
    anyone = TaskKey(namespace=namespace, dag_id=dag_id, run_id="", task_id=task_id)
    submission = Submission(task=anyone, run_token=name, submission_id=name)
    spec = task.spec.model_copy(update={"submission": submission})

    async def ask(address: ClusterAddress) -> list[Event]:
        async with RayJobsClient(address) as client:
            request = await build_preview_request(
                client,
                spec,
                wanted,
                key=key,
                secrets=travels,
                seal_key=connection.secret_seal_key,
                runtime_env=task.runtime_env,
            )
            return await run_preview(client, request, key, timeout, _say)

    place: AbstractContextManager[ClusterAddress]
    if connection.embedded:
        from airflow_provider_raybatch.cluster.local.cluster import embedded_cluster

        place = embedded_cluster(log=_say, env=as_environment(secrets))
    else:
        place = nullcontext(connection.address())
    with place as address:
        return run_blocking(ask(address))


def _say(line: str) -> None:
    print(masked(clean(line)), file=sys.stderr, flush=True)
