# SPDX-License-Identifier: Apache-2.0
"""Check DAGs in CI, without a cluster, a connection or a model."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import ParamValidationError
from airflow.sdk.execution_time import macros
from jinja2 import TemplateSyntaxError

from airflow_provider_raybatch.cluster.submit.function_source import package_of_source
from airflow_provider_raybatch.contract.base import is_import_path
from airflow_provider_raybatch.contract.failures import RaybatchError, SpecError
from airflow_provider_raybatch.contract.location import plain
from airflow_provider_raybatch.operators.base import RayOperator
from airflow_provider_raybatch.operators.parse_check import known_fields
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.rendering import each_value

if TYPE_CHECKING:
    from airflow.sdk import DAG

_FUNCTIONS = ("prompt_function", "postprocess", "response_format")
_UNDEFINED = re.compile(r"'(\w+)' is undefined")
_ONLY_IN_A_RUN = frozenset({
    "ti", "task_instance", "task_instance_key_str", "task_state_store", "map_index_template", "var", "conn",
    "inlets", "outlets", "inlet_events", "outlet_events", "triggering_asset_events", "expanded_ti_count",
    "prev_data_interval_start_success", "prev_data_interval_end_success", "prev_start_date_success",
    "prev_end_date_success", "test_mode", "reason", "templates_dict", "ti_key",
})  # fmt: skip


def check_dag(
    dag: DAG, *, run_after: datetime | None = None, params: Mapping[str, Any] | None = None
) -> None:
    """Check a DAG's Ray jobs and batch inferences as their tasks would before a job is submitted.

    Templates are rendered for one scheduled run. XComs, variables and what a decorated function returns are
    unknown and not checked. Mapped tasks are checked with each value that the DAG names.

    :param dag: as its file makes it; not changed.
    :param run_after: when the run is, default midnight of yesterday (UTC).
    :param params: values of the DAG's params, over their defaults.
    :raises SpecError: the mistakes of all tasks, a line each. One destination of two tasks is a mistake.
    """
    moment = run_after or datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(1)
    context = _context(dag, moment)
    mistakes: list[str] = []
    destinations: dict[str, str] = {}
    for operator, whose in [each for task in dag.tasks for each in _attempts(task)]:
        given = {**_defaults(operator.params), **(params or {})}
        try:
            _check(operator, {**context, "task": operator, "params": given}, whose, destinations)
        except RaybatchError as error:
            mistakes.append(f"{whose}: {error}")
    if mistakes:
        raise SpecError(f"DAG {dag.dag_id!r}:\n" + "\n".join(dict.fromkeys(mistakes)))


def _attempts(task: Any) -> Iterator[tuple[RayOperator, str]]:
    """Operators that may run for a task, each with its name."""
    if not issubclass(task.operator_class, RayOperator):
        return
    if not task.is_mapped:
        yield task.prepare_for_execution(), task.task_id
        return
    for number, values in enumerate(_expansions(task)):
        yield task.unmap(values), f"{task.task_id}[{number}]"


def _expansions(task: Any) -> Iterator[dict[str, Any]]:
    """Arguments of the map indexes, with the XCom itself where only an XCom names them."""
    value = task._get_specified_expand_input().value
    if hasattr(task, "op_kwargs_expand_input"):
        if isinstance(value, Mapping):
            yield {"op_kwargs": dict(value)}
    elif isinstance(value, Mapping):
        lists = {name: each if isinstance(each, (list, tuple)) else [each] for name, each in value.items()}
        first = {name: each[0] for name, each in lists.items() if each}
        for name, each in lists.items():
            yield from ({**first, name: one} for one in each[1:] if len(first) == len(lists))
        yield from [first] if len(first) == len(lists) else []
    else:
        others = set(task.operator_class.template_fields) - task.partial_kwargs.keys()
        for one in value if isinstance(value, (list, tuple)) else [value]:
            yield dict(one) if isinstance(one, Mapping) else dict.fromkeys(others, one)


def _check(operator: RayOperator, context: Any, whose: str, destinations: dict[str, str]) -> None:
    unknown = _rendered(operator, context)
    operator._convert(unknown)
    operator.check_known(unknown)
    if not isinstance(operator, RayBatchInferenceOperator):
        return
    fields, later = known_fields(operator.arguments(), unknown, operator.depends_on_run)
    for name in _FUNCTIONS:
        value = fields.get(name)
        if name not in later and isinstance(value, str) and is_import_path(value):
            package_of_source(value, name)
    destination = fields.get("destination")
    if "destination" in later or not isinstance(destination, str):
        return
    other = destinations.setdefault(plain(destination), whose)
    if other != whose and fields.get("on_destination_owned") != "take_over":
        raise SpecError(
            f"destination: {destination!r} is that of {other}, too, and the second of them is refused; give "
            "each a folder of its own."
        )


def _render(operator: RayOperator, context: Any, env: Any, name: str) -> None:
    operator._do_render_template_fields(operator, [name], context, env, set())


def _rendered(operator: RayOperator, context: Any) -> set[str]:
    """Render what can be rendered here, and return the names of the other arguments."""
    unknown, env = set(), operator.get_template_env()
    for name in operator.template_fields:
        value = getattr(operator, name)
        if not operator.depends_on_run(value):
            continue
        before = logging.root.manager.disable
        logging.disable()  # Airflow logs what fails, and here it may
        try:
            render = partial(_render, operator, context, env)
            for error in each_value(operator, name, render).values():  # whatever an XCom or a macro needs
                cause = error.__cause__
                undefined = _UNDEFINED.fullmatch(str(cause))
                is_wrong = undefined and undefined[1] not in _ONLY_IN_A_RUN
                if isinstance(cause, TemplateSyntaxError) or is_wrong:
                    raise error
                unknown.add(name)
        finally:
            logging.disable(before)
    return unknown


def _defaults(params: Any) -> dict[str, Any]:
    values = {}
    for name in params:
        with suppress(ParamValidationError):  # it has no default, and a run must give it
            values[name] = params[name]
    return values


def _context(dag: DAG, moment: datetime) -> dict[str, Any]:
    text = moment.strftime("%Y-%m-%d")
    names = {
        "logical_date": moment, "run_id": f"scheduled__{moment.isoformat()}", "data_interval_start": moment,
        "data_interval_end": moment, "partition_key": text,
    }  # fmt: skip
    run = SimpleNamespace(
        **names, dag_id=dag.dag_id, run_after=moment, start_date=moment, queued_at=moment, conf={},
        run_type="scheduled", team_name=None,
    )  # fmt: skip
    return {
        **names, "dag": dag, "dag_run": run, "macros": macros, "map_index": -1, "ds": text,
        "ds_nodash": text.replace("-", ""), "ts": moment.isoformat(), "ts_nodash": f"{moment:%Y%m%dT%H%M%S}",
        "ts_nodash_with_tz": moment.isoformat().replace("-", "").replace(":", ""),
    }  # fmt: skip
