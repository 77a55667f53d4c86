# SPDX-License-Identifier: Apache-2.0
"""Load a DAG file as Airflow does, and find its batch inference."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import nearest
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
    names = ", ".join(_name(task, dags) for task in all_of_kind[:20]) or "no batch inference"
    if fitting:
        raise SpecError(f"task: {file} has several batch inferences that fit; choose one of {names}.")
    if named and task_id is not None:
        kind = getattr(named[0], "operator_name", type(named[0]).__name__)
        raise SpecError(
            f"task: {task_id!r} in {file} is {_article(kind)}; name a RayBatchInferenceOperator or a "
            f"@task.ray_batch (there: {names})."
        )
    if task_id is None:
        raise SpecError(f"dag: {file} has no batch inference; name a file with a RayBatchInferenceOperator.")
    raise SpecError(f"task: {file} has no task {task_id!r}; there: {names}.")


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


def _article(kind: str) -> str:
    return f"an {kind}" if kind[:1].lower() in "aeiou" else f"a {kind}"
