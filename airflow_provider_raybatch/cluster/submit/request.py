# SPDX-License-Identifier: Apache-2.0
"""A batch inference as a job request: everything that must travel is uploaded, the rest is one command."""

from __future__ import annotations

import asyncio
import secrets as random_tokens
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from airflow_provider_raybatch.cluster.submit.function_source import package_of_source
from airflow_provider_raybatch.cluster.submit.package import (
    Package,
    ensure_package,
    package_of_needs,
    package_of_provider,
)
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.cluster.submit.runtime_env import upload_runtime_env, with_packages
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.layout import KEY_FILE, REQUEST_FILE, SECRETS_FILE, SPEC_FILE
from airflow_provider_raybatch.contract.preview import ORPHAN_TIMEOUT, PreviewRequest
from airflow_provider_raybatch.contract.secrets import Secrets, seal
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import STOP_GRACE, STOP_GRACE_VARIABLE, Submission

_WHEELS = ("obstore",)
"""Distributions, installed here, that the job needs besides Ray and vLLM."""

ENTRYPOINT = f"python -m airflow_provider_raybatch.job {SPEC_FILE}"
PREVIEW = f"python -m airflow_provider_raybatch.job.preview {SPEC_FILE} {REQUEST_FILE}"
WARM_ENGINES = "python -m airflow_provider_raybatch.job.warm_engines"


def with_source_digest(spec: BatchInferenceSpec) -> BatchInferenceSpec:
    """`spec` with the hashes of its functions' and its model's source, before the fingerprint is taken."""
    sources = _sources(spec)
    return spec.model_copy(update={f"{name}_digest": source.digest for name, source in sources.items()})


async def build_batch_request(
    client: RayJobsClient,
    spec: BatchInferenceSpec,
    *,
    key: str,
    secrets: Secrets | None = None,
    seal_key: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
) -> JobRequest:
    """Upload what the job needs and hand back the request that starts it.

    The driver asks for no resources, so that it never waits for any.

    :param spec: with `submission` filled, except for its `secrets_package`, which is set here.
    :param key: of this submission. It travels with `secrets` in a private package under a random name, which
        the driver reads and deletes at its start.
    :param seal_key: Fernet key that the cluster's nodes hold too; without it the credentials are readable on
        the cluster until the driver starts.
    :param runtime_env: the user's. `py_modules` and `env_vars` are kept, `working_dir` is refused.
    :raises SpecError: the spec has no submission, the runtime env or the seal key is wrong.
    :raises PackageError: something can't be shipped.
    """
    submission = _submission_of(spec)
    env = await _ship(client, spec, {}, key, secrets, seal_key, runtime_env)
    whose = SubmissionKey(submission.task, submission.run_token)
    return JobRequest(
        entrypoint=ENTRYPOINT,
        submission_id=submission.submission_id,
        runtime_env=env,
        metadata=whose.metadata(spec.fingerprint),
    )


async def build_preview_request(
    client: RayJobsClient,
    spec: BatchInferenceSpec,
    wanted: PreviewRequest,
    *,
    key: str,
    secrets: Secrets | None = None,
    seal_key: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
) -> JobRequest:
    """A preview job; it ships what the batch inference would.

    It has no metadata, so that it never counts as a submission of the task. It ends itself when its lease
    is not renewed.

    :param wanted: what it reports. The others, and errors, are those of :func:`build_batch_request`.
    """
    files = {REQUEST_FILE: wanted.model_dump_json().encode()}
    spec = spec.model_copy(update={"orphan_timeout": ORPHAN_TIMEOUT, "deadline": None})
    env = await _ship(client, spec, files, key, secrets, seal_key, runtime_env)
    return JobRequest(PREVIEW, _submission_of(spec).submission_id, runtime_env=env)


def _submission_of(spec: BatchInferenceSpec) -> Submission:
    if spec.submission is None:
        raise SpecError("submission: it must be filled before the job's request is built.")
    return spec.submission


async def _ship(
    client: RayJobsClient,
    spec: BatchInferenceSpec,
    files: Mapping[str, bytes],
    key: str,
    secrets: Secrets | None,
    seal_key: str | None,
    runtime_env: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Upload the spec, `files` beside it, and all code; return the job's runtime env."""
    submission = _submission_of(spec)
    users = _with_grace(await upload_runtime_env(client, runtime_env))
    with_packages(users, working_dir="", py_modules=[])  # refuses before anything of ours is uploaded
    packages = await asyncio.to_thread(_packages, spec)
    modules = [await ensure_package(client, package) for package in packages]
    name = await _upload_private(client, key, secrets, seal_key)
    spec = spec.model_copy(update={"submission": submission.model_copy(update={"secrets_package": name})})
    content = {SPEC_FILE: spec.model_dump_json().encode(), **files}
    working_dir = await ensure_package(client, Package(content))
    return with_packages(users, working_dir=working_dir, py_modules=modules)


async def build_warm_engines_request(client: RayJobsClient, submission_id: str, *, end: bool) -> JobRequest:
    """A job that lists the warm engines of a cluster in its log; with `end` it ends those that are idle."""
    packages = await asyncio.to_thread(_own_packages)
    modules = [await ensure_package(client, package) for package in packages]
    entrypoint = f"{WARM_ENGINES} --end" if end else WARM_ENGINES
    return JobRequest(entrypoint, submission_id, runtime_env={"py_modules": modules})


def _with_grace(runtime_env: dict[str, Any]) -> dict[str, Any]:
    """With time to write finished rows between the job's stop and its end: Ray's supervisor reads it here."""
    given = runtime_env.get("env_vars") or {}
    if not isinstance(given, dict):
        return runtime_env  # Ray refuses it
    return {**runtime_env, "env_vars": {STOP_GRACE_VARIABLE: str(STOP_GRACE), **given}}


def _packages(spec: BatchInferenceSpec) -> list[Package]:
    sources = _sources(spec)
    for name, source in sources.items():
        wanted = getattr(spec, f"{name}_digest")
        if wanted is not None and wanted != source.digest:
            raise SpecError(
                f"{name}: its source changed while the job was being submitted; the task's next try "
                "takes the new one."
            )
    # They may lie in one package.
    return _own_packages() + list({source.digest: source for source in sources.values()}.values())


def _own_packages() -> list[Package]:
    return [package_of_provider(), package_of_needs(*_WHEELS)]


def _sources(spec: BatchInferenceSpec) -> dict[str, Package]:
    """The source of each function of the user's, by the argument that names it."""
    return {name: package_of_source(path, name) for name, path in spec.functions.items()}


async def _upload_private(
    client: RayJobsClient, key: str, secrets: Secrets | None, seal_key: str | None
) -> str:
    """Put key and credentials under a name that can't be guessed."""
    name = f"_ray_pkg_{random_tokens.token_hex(16)}.zip"
    uri = f"gcs://{name}"
    files = {KEY_FILE: key.encode()}
    if secrets is not None and secrets.revealed():
        files[SECRETS_FILE] = seal(secrets, seal_key)
        # This makes Ray forget the package after ten minutes. A key alone stays until the driver takes it,
        # which may be long after, and opens nothing once the job is gone.
        await client.has_package(uri)
    await client.upload_package(uri, Package(files).content)
    return name
