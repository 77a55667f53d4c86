# SPDX-License-Identifier: Apache-2.0
"""When replicas start: while the driver still checks the job, where there is room for them.

They import their engine meanwhile, check the model there, and start it while rows are looked up. If the job
is refused, or nothing is left to do, they end before they have asked the engine anything.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar, cast

from pydantic import SecretStr

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.planning import cluster_view, fit, plan
from airflow_provider_raybatch.job.planning.plan import ClusterView, Plan
from airflow_provider_raybatch.job.replica.remote_call import RemoteCall
from airflow_provider_raybatch.job.row_order.rows_to_do import Input
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.replicas import Replicas
from airflow_provider_raybatch.job.warm_engines.source import OWN_ENGINES, EngineSource
from airflow_provider_raybatch.job.warm_engines.warm_source import engine_source
from airflow_provider_raybatch.job.work import CheckedModel, Job
from airflow_provider_raybatch.storage.folder import Folder

T = TypeVar("T")


class Launch(AbstractContextManager["Launch"]):
    """Starts the replicas of one job, and ends them on exit."""

    def __init__(self) -> None:
        self._replicas: Replicas | None = None
        self._source: EngineSource = OWN_ENGINES
        self._cluster = ClusterView(())
        self._has_begun = self._starts_soon = False
        self._model: CheckedModel | None = None
        self._spec: BatchInferenceSpec | None = None
        self._longest: int | None = None

    @property
    def began(self) -> float:
        """Epoch seconds at which replicas started; 0 if none did."""
        return 0.0 if self._replicas is None else self._replicas.began

    @property
    def at_once(self) -> int:
        """How many replicas found room when they started."""
        return 0 if self._replicas is None else self._replicas.at_once

    def __exit__(self, *_: object) -> None:
        self.end()

    def early(
        self,
        spec: BatchInferenceSpec,
        environment: dict[str, SecretStr],
        folder: Folder,
        rows: int,
        longest: int | None = None,
    ) -> None:
        """Start replicas for all rows of the input, if the present nodes hold them.

        Not where a range of replicas depends on the rows that are left, nor where one spans nodes.

        :param folder: the destination.
        :param longest: see :func:`~airflow_provider_raybatch.job.planning.plan.longest_response`.
        """
        self._spec, self._longest = spec, longest
        if spec.engine == ray_data_llm.NAME or not rows:
            return
        self._cluster = cluster_view.view()
        sizing = plan.make(spec, rows, self._cluster, longest)
        self._source = engine_source(spec, environment, sizing)
        is_fixed = sizing.fewest == sizing.replicas and not sizing.spans_nodes
        if is_fixed and fit.assess(sizing, self._cluster, autoscaling=False).verdict == "fits":
            self._starts_soon = cluster_view.has_idle(sizing) or self._source.has_idle()
            self._replicas = Replicas(spec, environment, folder, sizing)

    def ask(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Call a function in a process that has imported an engine: beside an idle one, or of a replica.

        :returns: what it returned; ``None`` if no engine is idle, and no replica starts soon.
        :raises Exception: what the function raises.
        """
        answer = self._source.ask(function, *arguments)
        if answer is not None:
            made, error = answer
            if error is not None:
                raise error
            return cast(T, made)
        if self._replicas is None or not self._starts_soon:
            return None
        returned: T | None = self._replicas.ask(RemoteCall(function, arguments))
        return returned

    def reports(self) -> list[ReplicaProgress]:
        """The latest ones of replicas that have started."""
        return [] if self._replicas is None else self._replicas.reports()

    def load(self, model: CheckedModel) -> None:
        """Let engines start: the model is checked."""
        self._model = model
        if self._replicas is not None:
            self._replicas.load(model)

    def plan(self, spec: BatchInferenceSpec, rows: int) -> Plan:
        """The plan for `rows` rows that are left. The number of replicas that have started stays."""
        if self._replicas is None:
            return plan.make(spec, rows, cluster_view.view(), self._longest)
        sizing, started = plan.make(spec, rows, self._cluster, self._longest), self._replicas.plan
        reasons = {**sizing.reasons, "replicas": started.reasons["replicas"]}
        return replace(sizing, replicas=started.replicas, reasons=reasons)

    def replicas(self, job: Job, sizing: Plan, work: Input) -> Replicas:
        """The replicas that have started, or new ones, with the rows to do."""
        if self._replicas is None:
            # The spec as the driver got it, so that late replicas look for the same warm engines.
            self._replicas = Replicas(self._spec or job.spec, job.environment, job.folder, sizing)
            self._replicas.load(self._model or CheckedModel(job.spec))
        self._replicas.begin(job, sizing, work)
        self._has_begun = True
        return self._replicas

    def end(self) -> None:
        """End them."""
        if self._replicas is not None:
            if self._has_begun:
                self._replicas.end()
            else:
                self._replicas.release()
            self._replicas = None
