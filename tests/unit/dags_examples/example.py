# SPDX-License-Identifier: Apache-2.0
"""The tasks of an example DAG as plain functions, and batch inferences without Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.dataset import Result, Rows
from tests.support.datasets import inferred
from tests.support.programs import program
from tests.support.whole_job import infer

EXAMPLES = Path(__file__).parents[3] / "dags_examples"


class Example:
    """One DAG of an example file, imported with its settings.

    :param settings: environment variables without their prefix.
    """

    def __init__(
        self, name: str, monkeypatch: pytest.MonkeyPatch, home: Path, **settings: str | Path
    ) -> None:
        monkeypatch.setenv("AIRFLOW_HOME", str(home))
        for key, value in settings.items():
            monkeypatch.setenv(f"RAYBATCH_EXAMPLE_{key}", str(value))
        self.module: Any = program(f"dags_examples/{name}.py", f"{name}_under_test")
        self.dag = getattr(self.module, name)()

    def call(self, task_id: str, *arguments: Any, **named: Any) -> Any:
        """Run the function of a Python task."""
        return self.dag.task_dict[task_id].python_callable(*arguments, **named)

    def infer(
        self,
        task_id: str,
        source: Result,
        folder: Path,
        answer: Callable[[Mapping[str, Any]], str | list[str] | None],
    ) -> dict[str, Any]:
        """Return what the batch inference of a task would return; its prompt is rendered for each row.

        :param answer: returns a row's response, all its samples, or ``None`` for a failed row.
        """
        operator = self.dag.task_dict[task_id]
        partial = getattr(operator, "partial_kwargs", {})
        argument = lambda name: partial.get(name, getattr(operator, name, None))  # noqa: E731
        templates = [one["content"] for one in argument("messages") or []] or [argument("prompt")]
        prefix = argument("output_prefix") or ""
        rows: list[dict[str, Any]] = []
        letters = []
        for row in Rows(source).rows():
            for template in templates:
                RowTemplate(template).render(row)
            answered = answer(row)
            if answered is None:
                letters.append({"ordinal": len(letters), "step": "engine", "reason": "it failed", "row": row})
                continue
            samples = answered if isinstance(answered, list) else [answered]
            row |= {f"{prefix}response": samples[0], f"{prefix}output_tokens": 5}
            if isinstance(answered, list):
                row[f"{prefix}completions"] = [{"text": one} for one in samples]
            rows.append(row)
        schema = None if rows else Rows(source).schema.append(_text(f"{prefix}response"))
        return inferred(folder, rows, schema, letters)

    def infer_in_steps(
        self, task_id: str, source: Mapping[str, Any], night: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what the batch inference of a task returns: a whole job in this process, with the echo.

        :param night: in place of the run's time.
        """
        operator = self.dag.task_dict[task_id]
        template = Environment().from_string(operator.max_error_fraction)
        summary = infer(
            operator,
            source=source["uri"],
            destination=operator.destination.replace(self.module.NIGHT, night),
            max_error_fraction=template.render(params=params),
            engine="echo",
        )
        return summary.model_dump(mode="json")


def _text(name: str) -> Any:
    import pyarrow as pa

    return pa.field(name, pa.string())
