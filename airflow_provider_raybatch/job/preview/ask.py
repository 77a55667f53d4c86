# SPDX-License-Identifier: Apache-2.0
"""Gets the engine's answers to some rows of a preview: from a warm engine, or from one that starts for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.contract.events import Phase
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.preview import RowAnswer
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.process import Driver
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.planning import cluster_view, plan
from airflow_provider_raybatch.job.planning.node_groups import gpus_in_words
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.preflight.check import Facts
from airflow_provider_raybatch.job.preflight.engine_check import Emit, checked_model
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preview.asker import Asking, answers
from airflow_provider_raybatch.job.preview.inspection import Refusals, Uncounted, would_run
from airflow_provider_raybatch.job.preview.rows import PreviewedRows
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.job.run.cpu_tasks import on_this_node
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.warm_engines.registry import WarmEngineRegistry, key_of
from airflow_provider_raybatch.job.warm_engines.source import OWN_ENGINES, EngineSource
from airflow_provider_raybatch.job.warm_engines.warm_source import WarmEngineSource, engine_source
from airflow_provider_raybatch.job.work import Job

_POLL = 0.5
_GIVE_BACK_SECONDS = 10.0


def ask(facts: Facts, rows: PreviewedRows, most: int, driver: Driver, refusals: Refusals) -> list[RowAnswer]:
    """The answers; none where the engine can't be asked, which `refusals` tell.

    :param facts: by :func:`~airflow_provider_raybatch.job.preview.inspection.inspect`.
    :param rows: the first `most` of them are asked.
    :raises RaybatchError: the job must end.
    """
    spec, job, checked = facts[BatchInferenceSpec], facts.get(Job), facts.get(ModelCheck)
    made = plan.make(spec, max(1, len(rows.read)), cluster_view.view())
    sizing = replace(made, replicas=1, fewest_replicas=None)
    why_not = _why_not(facts, rows, sizing)
    if why_not or job is None or checked is None:
        refusals.note(f"ask: no row was asked, since {why_not}")
        return []
    source, is_idle = _source(spec, job.environment, sizing)
    driver.emit(_announced(spec, sizing, len(rows.read), is_idle))
    asking = Asking(job, checked_model(spec, checked), source, rows.read)
    options = {"num_cpus": 0 if is_idle else sizing.cpus, **source.replica_options(sizing)}
    return _waited_for(asking, options, driver, refusals)


def _why_not(facts: Facts, rows: PreviewedRows, sizing: Plan) -> str:
    if facts[BatchInferenceSpec].engine == ray_data_llm.NAME:
        return "engine 'ray_data_llm' is a pipeline of Ray's, and no engine that a preview can ask"
    if (uncounted := facts.get(Uncounted)) is not None:
        return uncounted.reason
    if not (would_run(facts) and rows.fits):
        return "the job would be refused"
    if not rows.read:
        return "none of these rows makes a request"
    if sizing.spans_nodes:
        return "the engine would span nodes, and a preview starts one on a single node"
    return ""


def _source(
    spec: BatchInferenceSpec, environment: Mapping[str, SecretStr], sizing: Plan
) -> tuple[EngineSource, bool]:
    """Where the engine comes from, and whether it is a warm one that is idle now.

    A task without `keep_warm` takes what other tasks have left, and leaves it for as long as it would have
    stayed.
    """
    if spec.keep_warm is not None:
        source = engine_source(spec, environment, sizing)
        return source, source.has_idle()
    key = key_of(spec, environment, sizing, 0.0)
    states = WarmEngineRegistry(key.digest).states().values()
    rests = [state.ends_in for state in states if state is not None and state.is_free]
    if not rests:
        return OWN_ENGINES, False
    return WarmEngineSource(replace(key, seconds=max(rests)), most=1), True


def _announced(spec: BatchInferenceSpec, sizing: Plan, rows: int, is_idle: bool) -> Phase:
    asked = count_of(rows, "row")
    if is_idle:
        return Phase(phase="asking", message=f"asking a warm engine for {asked}")
    stays = f", and stays for {spec.keep_warm:g} s then (keep_warm)" if spec.keep_warm else ""
    busy = "" if cluster_view.has_idle(sizing) else "; they are in use now, so it waits for them"
    return Phase(
        phase="starting",
        message=(
            f"no warm engine is idle, so one must start for {asked}: it takes {_takes(sizing)} of the "
            f"cluster{stays}{busy}"
        ),
    )


def _takes(sizing: Plan) -> str:
    cpus = count_of(int(sizing.cpus), "CPU") if sizing.cpus == int(sizing.cpus) else f"{sizing.cpus:g} CPUs"
    if not sizing.gpus:
        return f"{cpus} and no GPU"
    kinds = cluster_view.view().gpu_types(sizing.accelerator_type)
    names = " or ".join(sorted(name for name in kinds if name))
    return f"{gpus_in_words(sizing.gpus)}{f' ({names})' if names else ''} and {cpus}"


def _waited_for(
    asking: Asking, options: Mapping[str, Any], driver: Driver, refusals: Refusals
) -> list[RowAnswer]:
    """Ask in a task, beside a coordinator as replicas have it."""
    of_coordinator = on_this_node() | asking.source.coordinator_options()
    coordinator = ray.remote(**of_coordinator)(Coordinator).remote(asking.job.folder, asking.source)
    # One call a process: what an engine leaves in it ends with it.
    asked = ray.remote(max_calls=1, max_retries=0, **options)(answers).remote(asking, coordinator)
    told = _Told(driver.emit, len(asking.read))
    with driver.control.draining():
        try:
            while not ray.wait([asked], timeout=_POLL)[0]:
                driver.control.check()
                told.tell(ray.get(coordinator.snapshot.remote()))
            with refusals.caught():
                return _returned(asked)
        except BaseException:
            # It gives a warm engine back; one that still starts ends with this process.
            coordinator.drain.remote()
            ray.wait([asked], timeout=_GIVE_BACK_SECONDS if told.is_ready else 0)
            raise
        finally:
            asking.source.await_return(coordinator)
    return []


def _returned(asked: Any) -> list[RowAnswer]:
    try:
        made: list[RowAnswer] = ray.get(asked)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RaybatchError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise RaybatchError(
            f"ask: the process that asked the engine ended ({' '.join(str(error).split())}).",
            FailureClass.ENGINE_DEAD,
        ) from error
    return made


class _Told:
    """Says what the engine does, each state once."""

    def __init__(self, emit: Emit, rows: int) -> None:
        self._emit = emit
        self._rows = rows
        self._state = ""

    @property
    def is_ready(self) -> bool:
        """Whether the engine has the rows."""
        return self._state == "ready"

    def tell(self, reports: list[ReplicaProgress]) -> None:
        """Look at the reports of the process that asks."""
        state = reports[0].state if reports else ""
        if state == self._state or state not in {"starting", "ready"}:
            return
        self._state = state
        if state == "starting":
            self._emit(Phase(phase="starting", message="the engine starts"))
            return
        gpus = f" on GPU {', '.join(reports[0].gpus)}" if reports[0].gpus else ""
        seconds, rows = reports[0].startup_seconds, count_of(self._rows, "row")
        text = f"the engine is ready{gpus} after {seconds:.0f} s; asking it for {rows}"
        self._emit(Phase(phase="asking", message=text))
