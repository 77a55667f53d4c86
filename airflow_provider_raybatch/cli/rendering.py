# SPDX-License-Identifier: Apache-2.0
"""Render the templates of a task as Airflow would in a run, without a run."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import timezone
from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions._internal.types import NOTSET, is_arg_set
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import RaybatchError, SpecError
from airflow_provider_raybatch.contract.text import count_of, plain_reason
from airflow_provider_raybatch.hooks.lookup import server_lookup
from airflow_provider_raybatch.operators.rendering import each_value

if TYPE_CHECKING:
    from airflow.sdk import Context

RETURNED = "return_value"


class XComs:
    """The XComs that were given, by task id and key.

    :param given: ``TASK=VALUE`` or ``TASK:KEY=VALUE`` each; a value is JSON, or else text.
    :raises SpecError: one has no ``=``.
    """

    def __init__(self, given: Iterable[str]) -> None:
        self._values: dict[tuple[str, str], Any] = {}
        for text in given:
            name, equals, value = text.partition("=")
            task_id, _, key = name.partition(":")
            if not equals or not task_id:
                raise SpecError(f"set: {text!r} gives no value; write it as TASK=VALUE or TASK:KEY=VALUE.")
            self._values[task_id, key or RETURNED] = _json_or_text(value)

    def pull(self, task_id: str, key: str, default: Any = NOTSET) -> Any:
        """One value, or else `default`; without one, ``SpecError`` says how to give it."""
        found = self._values.get((task_id, RETURNED))
        if (task_id, key) in self._values:
            return self._values[task_id, key]
        if isinstance(found, Mapping) and key in found:  # a task with multiple_outputs
            return found[key]
        if is_arg_set(default):
            return default
        name = task_id if key == RETURNED else f"{task_id}:{key}"
        raise SpecError(
            f"it takes the XCom {key!r} of task {task_id!r}, which is not given; add --set {name}=VALUE."
        )


class TaskInstanceOfNoRun(RuntimeTaskInstance):
    """A task instance whose XComs were given."""

    _xcoms: XComs | None = None

    def xcom_pull(
        self,
        task_ids: Any = None,
        dag_id: Any = None,
        key: str = RETURNED,
        *args: Any,
        default: Any = NOTSET,
        **kwargs: Any,
    ) -> Any:
        """As Airflow's, from what was given."""
        assert self._xcoms is not None
        if task_ids is None or isinstance(task_ids, str):
            return self._xcoms.pull(task_ids or self.task_id, key, default)
        return [self._xcoms.pull(task_id, key, default) for task_id in task_ids]


def template_context(
    task: Any, at: datetime, xcoms: XComs, conf: Mapping[str, Any], map_index: int
) -> Context:
    """What templates of `task` may use in a run of the logical date `at`.

    :raises SpecError: parameters of the DAG have no value, or a wrong one.
    """
    from airflow.sdk.api.datamodels._generated import TIRunContext

    values: dict[str, Any] = {
        "id": uuid.uuid4(),
        "task_id": task.task_id,
        "dag_id": task.dag_id,
        "run_id": f"manual__{at.isoformat()}",
        "try_number": 1,
        "map_index": map_index,
        "dag_version_id": uuid.uuid4(),
        "start_date": timezone.utcnow(),
        "task": task,
        "_ti_context_from_server": TIRunContext(dag_run=_dag_run(task.dag, at, conf), max_tries=0),
    }
    ti = TaskInstanceOfNoRun.model_construct(**values)  # without a bundle, which templates don't need
    ti._xcoms = xcoms
    try:
        context: Context = ti.get_template_context()
    except Exception as error:
        raise SpecError(f"params: {_one_line(error)}; give values with --conf.") from error
    # With it, an operator that fails to render would stop the job of its last attempt.
    context.pop("task_state_store", None)
    return context


def render(task: Any, context: Context) -> tuple[Any, dict[str, str]]:
    """Render each field on its own.

    :return: the task, which is another object for a mapped one; and why fields could not be rendered, a
        sentence each.
    """
    with server_lookup():
        if task.is_mapped:
            try:
                _check_index(task, context)
                task.render_template_fields(context)
            except Exception as error:
                return context["task"], {task.task_id: _one_line(error)}
            return context["task"], {}
        failures = {}
        env = task.get_template_env()

        def rendered(name: str) -> None:
            task._do_render_template_fields(task, (name,), context, env, set())
            setattr(task, name, _without_sequences(getattr(task, name), context["ti"]))

        for name in task.template_fields:
            for part, why in each_value(task, name, rendered).items():
                failures[part] = _one_line(why).removeprefix(f"{name}: ")
    return task, failures


def _check_index(task: Any, context: Context) -> None:
    """Airflow counts on from 0 beyond the last index.

    :raises SpecError: the task has no instance of this index.
    """
    given, index = task._get_specified_expand_input().value, context["ti"].map_index or 0
    each = list(given.values()) if isinstance(given, Mapping) else [given]
    values = [one.resolve(context) if isinstance(one, ResolveMixin) else one for one in each]
    count = math.prod(len(value) for value in values)
    if not 0 <= index < count:
        last = f", 0 to {count - 1}" if count else ""
        instances = count_of(count, "instance")
        raise SpecError(f"map_index: the task has {instances} here{last}, but it is {index}.")


def run_date(text: str | None) -> datetime:
    """The logical date that an option names, by default now; `SpecError` if it is none."""
    if text is None:
        return timezone.utcnow()
    try:
        found = timezone.parse(text)
    except Exception:
        raise SpecError(
            f"date: {text!r} is not a date; write it as 2026-11-30 or 2026-11-30T06:00."
        ) from None
    return found


def run_conf(text: str | None) -> Mapping[str, Any]:
    """The configuration of the run that an option holds; `SpecError` if it is not a JSON object."""
    found = _json_or_text(text or "{}")
    if not isinstance(found, Mapping):
        raise SpecError(f"conf: {shown(text)} is not a JSON object; write it as '{{\"name\": 1}}'.")
    return found


def _dag_run(dag: Any, at: datetime, conf: Mapping[str, Any]) -> Any:
    from airflow.sdk.api.datamodels._generated import DagRun, DagRunState, DagRunType
    from airflow.serialization.encoders import coerce_to_core_timetable

    interval = coerce_to_core_timetable(dag.timetable).infer_manual_data_interval(run_after=at)
    return DagRun(
        dag_id=dag.dag_id,
        run_id=f"manual__{at.isoformat()}",
        logical_date=at,
        data_interval_start=interval.start,
        data_interval_end=interval.end,
        run_after=at,
        start_date=at,
        end_date=None,
        run_type=DagRunType.MANUAL,
        state=DagRunState.RUNNING,
        conf=dict(conf),
        consumed_asset_events=[],
        partition_key=None,
    )


def _without_sequences(value: Any, ti: Any) -> Any:
    """`value` with what was given for mapped tasks, for whose XComs Airflow would ask its server."""
    from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence

    if isinstance(value, LazyXComSequence):
        return ti.xcom_pull(value._xcom_arg.operator.task_id, key=value._xcom_arg.key)
    if value.__class__ in (list, tuple):
        return value.__class__(_without_sequences(one, ti) for one in value)
    if value.__class__ is dict:
        return {name: _without_sequences(one, ti) for name, one in value.items()}
    return value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _one_line(error: BaseException) -> str:
    if isinstance(error, RaybatchError):
        return str(error)
    if isinstance(error, AirflowRuntimeError) and (message := (error.error.detail or {}).get("message")):
        return f"it can't be rendered here ({message}); create that in Airflow."
    return f"it can't be rendered here ({plain_reason(error)}); correct it."
