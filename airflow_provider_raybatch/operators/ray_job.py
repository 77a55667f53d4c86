# SPDX-License-Identifier: Apache-2.0
"""`RayJobOperator`: runs any command as a job on a Ray cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_raybatch.coercion import given_mapping, is_absent, typed, typed_values
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.operators.base import TEMPLATED_OF_ALL, RayOperator
from airflow_provider_raybatch.operators.plan import JobPlan, TaskRun, fingerprint
from airflow_provider_raybatch.operators.rendering import only_set

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest

_RESERVED = {"entrypoint_num_cpus": float, "entrypoint_num_gpus": float, "entrypoint_memory": int}


class RayJobOperator(RayOperator):
    """Runs a command as a Ray job: submitted once whatever dies, followed, stopped with its task.

    Returns ``{"submission_id", "status", "dashboard_url"}``, and `ray_cluster` of a cluster that was made for
    the job, by which a ``RayJobSensor`` finds it. All arguments are template fields.

    :param entrypoint: the command, such as ``python train.py``.
    :param runtime_env: Ray's runtime environment. `working_dir` and entries of `py_modules` may be folders of
        the Airflow worker, which are zipped and uploaded, without `.env` files. Everyone who reaches the Jobs
        API can read its `env_vars`, so keep secrets out of them.
    :param entrypoint_num_cpus: CPUs reserved for the driver; default none, and the driver runs on the head
        node.
    :param entrypoint_num_gpus: GPUs reserved for the driver; default none.
    :param entrypoint_memory: bytes reserved for the driver; default none.
    :param entrypoint_resources: custom resources reserved for the driver, by name.
    :param entrypoint_label_selector: labels that the driver's node must have.
    :param metadata: text by name, kept with the job.
    :param wait_for_completion: default yes; ``False``: only submit, for a ``RayJobSensor`` to wait. Then no
        `timeout` or `deadline` ends the job.

    The job knows no deadline and no `orphan_timeout`: when no task follows it any more, it runs to its end.
    Whether it succeeded is Ray's word alone; nothing that it prints counts.

    The other parameters are those of :class:`~airflow_provider_raybatch.operators.base.RayOperator`.
    """

    template_fields: Sequence[str] = only_set((
        "entrypoint", "runtime_env", *_RESERVED, "entrypoint_resources", "entrypoint_label_selector",
        "metadata", "wait_for_completion", *TEMPLATED_OF_ALL,
    ))  # fmt: skip
    text_fields: ClassVar[frozenset[str]] = frozenset({"entrypoint", "ray_conn_id", "on_stale_state"})
    template_fields_renderers: ClassVar[dict[str, str]] = only_set({
        "entrypoint": "bash",
        "runtime_env": "json",
        "metadata": "json",
    })

    def __init__(
        self,
        *,
        entrypoint: str,
        runtime_env: Mapping[str, Any] | None = None,
        entrypoint_num_cpus: float | str | None = None,
        entrypoint_num_gpus: float | str | None = None,
        entrypoint_memory: int | str | None = None,
        entrypoint_resources: Mapping[str, float] | None = None,
        entrypoint_label_selector: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        wait_for_completion: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.entrypoint = entrypoint
        self.runtime_env = runtime_env
        self.entrypoint_num_cpus = entrypoint_num_cpus
        self.entrypoint_num_gpus = entrypoint_num_gpus
        self.entrypoint_memory = entrypoint_memory
        self.entrypoint_resources = entrypoint_resources
        self.entrypoint_label_selector = entrypoint_label_selector
        self.metadata = metadata
        self.wait_for_completion = wait_for_completion
        self._check_at_parse()

    def check_known(self, unknown: Collection[str]) -> None:
        """See :meth:`RayOperator.check_known`."""
        if "entrypoint" not in unknown:
            _command(self.entrypoint)
        if "metadata" not in unknown:
            _texts(self.metadata)
        for name in _RESERVED:
            if name not in unknown:
                _amount(getattr(self, name), name)
        if "entrypoint_resources" not in unknown:
            _resources(self.entrypoint_resources)
        for name in ("runtime_env", "entrypoint_label_selector"):
            if name not in unknown:
                given_mapping(getattr(self, name), name)

    def plan(self, run: TaskRun) -> JobPlan:
        """See :meth:`RayOperator.plan`."""
        entrypoint, texts = _command(self.entrypoint), _texts(self.metadata)
        env = given_mapping(self.runtime_env, "runtime_env")
        labels = given_mapping(self.entrypoint_label_selector, "entrypoint_label_selector")
        driver: dict[str, Any] = {
            **{name: _amount(getattr(self, name), name) for name in _RESERVED},
            "entrypoint_resources": _resources(self.entrypoint_resources),
            "entrypoint_label_selector": labels,
        }

        async def build(client: RayJobsClient, submission_id: str) -> JobRequest:
            from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
            from airflow_provider_raybatch.cluster.submit.runtime_env import upload_runtime_env

            runtime_env = await upload_runtime_env(client, env)
            return JobRequest(entrypoint, submission_id, runtime_env, texts, **driver)

        return JobPlan(fingerprint=fingerprint([entrypoint, env, texts, driver]), build=build)

    def hand_over(self, outcome: Outcome, handle: Mapping[str, Any]) -> dict[str, Any]:
        """See :meth:`RayOperator.hand_over`."""
        return _result(handle, "SUCCEEDED")

    def submitted(self, handle: Mapping[str, Any], info: JobInfo) -> dict[str, Any]:
        """See :meth:`RayOperator.submitted`."""
        return _result(handle, info.status.value)


def _command(value: Any) -> str:
    if not isinstance(value, str) or is_absent(value):
        raise SpecError(f"entrypoint: {shown(value)} is not a command; give it as text.")
    return value


def _texts(value: Any) -> dict[str, str]:
    # Ray takes text alone here; a number out of a template or an XCom is meant as its text.
    return {str(name): str(text) for name, text in (given_mapping(value, "metadata") or {}).items()}


def _amount(value: Any, name: str) -> Any:
    return None if is_absent(value) else typed(value, _RESERVED[name], name)


def _resources(value: Any) -> Any:
    named = given_mapping(value, "entrypoint_resources")
    return typed_values(named, dict.fromkeys(named or (), float), "entrypoint_resources")


def _result(handle: Mapping[str, Any], status: str) -> dict[str, Any]:
    job, page = handle["submission_id"], handle["dashboard_url"]
    made = {"ray_cluster": handle["ray_cluster"]} if "ray_cluster" in handle else {}
    return {"submission_id": job, "status": status, "dashboard_url": page, **made}
