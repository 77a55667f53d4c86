# SPDX-License-Identifier: Apache-2.0
"""From the options of a verb to one batch inference: a task of a DAG file, or the operator's arguments."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.argument_fields import GROUPS, argument_of, fields_of
from airflow_provider_raybatch.cli.places import absolute, absolute_folder
from airflow_provider_raybatch.cli.rendering import XComs, render, run_conf, run_date, template_context
from airflow_provider_raybatch.cli.terminal import masked, quietly
from airflow_provider_raybatch.cluster.submit.request import with_source_digest
from airflow_provider_raybatch.coercion import given_mapping, is_absent
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import RaybatchError, SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import nearest
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_raybatch.operators.arguments import ARGUMENTS, FIELDS, spec_of_fields
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

_DEPTH = "AIRFLOW__CORE__DAGBAG_IMPORT_ERROR_TRACEBACK_DEPTH"
_OWN_ERROR = re.compile(r"airflow_provider_raybatch(?:\.\w+)+: ")
"""Their sentences say it all."""


def find_task(file: str, task_id: str | None) -> Any:
    """The batch inference of a DAG file: an operator, or a mapped one.

    :param task_id: with or without ``DAG_ID.`` before it; not needed where the file has one batch inference.
    :raises SpecError: the file can't be loaded, or lacks this batch inference.
    """
    dags = _dags(file)
    tasks = [task for dag in dags for task in dag.tasks]
    named = [task for task in tasks if task_id in (None, task.task_id, f"{task.dag_id}.{task.task_id}")]
    fitting = [task for task in named if _is_batch_inference(task)]
    if len(fitting) == 1:
        return fitting[0]
    all_of_kind = [task for task in tasks if _is_batch_inference(task)]
    names = ", ".join(_name(task, dags) for task in all_of_kind[:20]) or "none"
    if fitting:
        raise SpecError(f"task: {file} has several batch inferences that fit; choose one of {names}.")
    named_so = "" if task_id is None else f" {task_id!r}"
    raise SpecError(
        f"task: {file} has no RayBatchInferenceOperator or @task.ray_batch{named_so}; there: {names}."
    )


def _dags(file: str) -> list[Any]:
    path = Path(file).absolute()
    if not path.is_file():
        near = nearest(path.name, (one.name for one in path.parent.glob("*.py")))
        raise SpecError(
            f"dag: {file} is not a file; {f'did you mean {near!r}?' if near else 'name a DAG file.'}"
        )
    from airflow.dag_processing.dagbag import DagBag

    # What a DAG file prints is not part of a verb's output.
    with contextlib.redirect_stdout(sys.stderr), importing_from(path.parent), _whole_tracebacks():
        bag = DagBag(str(path), safe_mode=False)
    if bag.import_errors:
        why = _last_line(next(iter(bag.import_errors.values())), path)
        raise SpecError(f"dag: {file} can't be loaded ({why}); correct it.")
    if not bag.dags:
        raise SpecError(f"dag: {file} has no DAG; name a file that defines one.")
    return list(bag.dags.values())


def _last_line(error: str, path: Path) -> str:
    """What a traceback ends with, and the line of the file that led there."""
    lines = error.strip().splitlines()
    places = re.findall(rf'File "{re.escape(str(path))}", line (\d+)', error)
    last = _OWN_ERROR.sub("", lines[-1].strip()) if lines else "unknown error"
    return f"{f'line {places[-1]}: ' if places else ''}{last.rstrip('.')}"


@contextlib.contextmanager
def _whole_tracebacks() -> Iterator[None]:
    """Let Airflow keep all frames of a traceback, which are two by default: those of the DAG file, too."""
    before = os.environ.get(_DEPTH)
    os.environ[_DEPTH] = "1000"
    try:
        yield
    finally:
        os.environ.pop(_DEPTH)
        if before is not None:
            os.environ[_DEPTH] = before


@contextlib.contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Let a DAG file import modules beside it, as those of Airflow's DAG folder may."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _is_batch_inference(task: Any) -> bool:
    kind = getattr(task, "operator_class", None) or type(task)
    return isinstance(kind, type) and issubclass(kind, RayBatchInferenceOperator)


def _name(task: Any, dags: list[Any]) -> str:
    return repr(task.task_id if len(dags) == 1 else f"{task.dag_id}.{task.task_id}")


NO_DESTINATION = str(Path(tempfile.gettempdir()) / "raybatch-no-destination")
"""Stands for a destination that is not known: a folder that does not exist."""

_OPTIONS = ("source", "prompt", "model", "engine", "destination")
"""Arguments of the operator that are options of their own."""
_NAMES = tuple(dict.fromkeys([*ARGUMENTS, *FIELDS]))
"""What ``--argument`` may give: arguments, and what objects hold by its own name, too."""
_CONNECTIONS = ("aws_conn_id", "hf_conn_id")
_BESIDE = (*_CONNECTIONS, "ray_conn_id", "runtime_env")
"""Arguments that a preview takes from the task, and that are not of its spec."""
_OPTIONAL = frozenset({"destination", "reuse"})
"""Arguments without which a batch inference can still be looked at."""
_FOLDERS = ("destination", "reuse")


@dataclass(frozen=True)
class BatchTask:
    """A batch inference before it runs.

    :param title: what it is, such as ``task 'label' of DAG 'nightly' on 2026-11-30``.
    :param names: ids of DAG and task; empty without a DAG file.
    :param spec: its `destination` is :data:`NO_DESTINATION` where none is known.
    :param ray_conn_id: the connection that the task would use.
    :param notes: what could not be rendered and was left out, a sentence each; free of secrets.
    """

    title: str
    spec: BatchInferenceSpec
    ray_conn_id: str = DEFAULT_CONN_ID
    aws_conn_id: str | None = None
    hf_conn_id: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = field(default=())
    names: tuple[str, str] = ("", "")


def batch_task(options: Namespace) -> BatchTask:
    """The batch inference that :data:`~.verbs.TASK_OPTIONS` name.

    The DAG file, and the function of a ``@task.ray_batch``, run in this process, as they do in Airflow.

    :raises SpecError: the options, the DAG file or the task can't be used; or a template that it needs can't
        be rendered. The sentence names the option or the argument.
    """
    return quietly(lambda: _batch_task(options))


def _batch_task(options: Namespace) -> BatchTask:
    given = _given_arguments(options)
    if options.dag is None:
        if options.task is not None:
            raise SpecError("task: it is a task of a DAG file; name the file with --dag.")
        if "source" not in given:
            raise SpecError("dag: no batch inference was named; give --dag FILE, or --source and --prompt.")
        return _made("the options", given, options, {}, ())
    at = run_date(options.date)
    with importing_from(Path(options.dag).absolute().parent), contextlib.redirect_stdout(sys.stderr):
        task = find_task(options.dag, options.task)
        if options.map_index is not None and not task.is_mapped:
            raise SpecError(f"map_index: task {task.task_id!r} is not mapped; leave it out.")
        index = (options.map_index or 0) if task.is_mapped else -1
        context = template_context(task, at, XComs(options.set or ()), run_conf(options.conf), index)
        task, failures = render(task, context)
        if task.is_mapped:
            raise SpecError(f"{task.task_id}: {failures[task.task_id]}")
        _call_function(task, context, failures)
    title = f"task {task.task_id!r} of DAG {task.dag_id!r} on {at.date().isoformat()}"
    replaced = _named(options) & {*ARGUMENTS}
    failures = {
        name: sentence
        for name, sentence in failures.items()
        if name in (*_NAMES, *_BESIDE) and name not in given and argument_of(name) not in replaced
    }
    needed = [f"{name}: {failures[name]}" for name in failures if name in {*_NAMES} - _OPTIONAL]
    if needed:
        raise SpecError(masked(" ".join(needed)))
    notes = tuple(masked(f"{name}: {sentence}") for name, sentence in failures.items())
    if getattr(task, "ray_cluster", None) is not None:
        used = options.conn_id or DEFAULT_CONN_ID
        notes += (f"ray_cluster: what asks a cluster asks that of the connection {used!r}; none is made.",)
    known = _known(task, failures, replaced)
    made = _made(title, given, options, known, notes)
    return replace(made, names=(task.dag_id, task.task_id))


def _known(task: Any, failures: Collection[str], replaced: Collection[str]) -> dict[str, Any]:
    """What the task has been given, without what could not be rendered, and without `replaced` arguments."""
    known: dict[str, Any] = {}
    for name in (*ARGUMENTS, *_BESIDE):
        value = getattr(task, name, None)
        if name in replaced:
            continue
        if name in GROUPS and isinstance(value, Mapping):  # its values fail by themselves
            known[name] = {key: one for key, one in value.items() if key not in failures}
        elif name not in failures:
            known[name] = value
    return known


def _made(
    title: str,
    given: Mapping[str, Any],
    options: Namespace,
    own: Mapping[str, Any],
    notes: tuple[str, ...],
) -> BatchTask:
    of_spec = {**fields_of({name: value for name, value in own.items() if name in ARGUMENTS}), **given}
    if is_absent(of_spec.get("destination")):
        of_spec["destination"] = NO_DESTINATION
    return BatchTask(
        title=title,
        spec=with_source_digest(spec_of_fields(of_spec)),
        ray_conn_id=options.conn_id or own.get("ray_conn_id") or DEFAULT_CONN_ID,
        aws_conn_id=options.aws_conn_id or own.get("aws_conn_id") or None,
        hf_conn_id=options.hf_conn_id or own.get("hf_conn_id") or None,
        runtime_env=given_mapping(own.get("runtime_env"), "runtime_env"),
        notes=notes,
    )


def _call_function(task: Any, context: Any, failures: dict[str, str]) -> None:
    """Take what the function of a ``@task.ray_batch`` returns."""
    from airflow_provider_raybatch.decorators.ray_batch import RayBatchDecoratedOperator

    if not isinstance(task, RayBatchDecoratedOperator):
        return
    unknown = [f"{name}: {failures[name]}" for name in ("op_args", "op_kwargs") if name in failures]
    if unknown:
        raise SpecError(masked(" ".join(unknown)))
    try:
        returned = task.take_arguments(context)
    except RaybatchError:
        raise
    except Exception as error:
        raise SpecError(
            masked(
                f"{task.python_callable.__name__}: the task's function failed here ({type(error).__name__}: "
                f"{' '.join(str(error).split())}); correct it, or give what it needs."
            )
        ) from error
    for name in returned:
        failures.pop(name, None)


def _named(options: Namespace) -> set[str]:
    """The names that the options give."""
    given = {name for name in _OPTIONS if getattr(options, name, None) is not None}
    return given | {text.partition("=")[0] for text in options.argument or ()}


def _given_arguments(options: Namespace) -> dict[str, Any]:
    """The fields of the spec among the options."""
    given = {name: value for name in _OPTIONS if (value := getattr(options, name, None)) is not None}
    for text in options.argument or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SpecError(f"argument: {text!r} gives no value; write it as NAME=VALUE.")
        if name not in _NAMES:
            close = nearest(name, _NAMES)
            hint = f"did you mean {close!r}?" if close else "see docs/reference/operators.md."
            raise SpecError(
                f"argument: RayBatchInferenceOperator has no {shown(name)} that shapes its job; {hint}"
            )
        given[name] = value
    given = fields_of(given)
    if "source" in given:
        sources = [given["source"]] if isinstance(given["source"], str) else given["source"]
        given["source"] = [absolute(source) for source in sources]
    for name in _FOLDERS:
        if name in given:
            given[name] = absolute(given[name])
    if "model" in given:
        given["model"] = absolute_folder(given["model"])
    return given
