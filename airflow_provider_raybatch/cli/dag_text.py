# SPDX-License-Identifier: Apache-2.0
"""The text of a DAG file. What comes from a user's file stands in it by ``repr`` alone, never as code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cli.file_columns import Columns
from airflow_provider_raybatch.contract.row_template import placeholder
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.operators.arguments import build_spec

_MOST_LISTED = 20
_WIDTH = 100
_JINJA = ("{{", "{%", "{#")
_RUN = "{{ dag_run.run_after | ts_nodash }}"


@dataclass(frozen=True)
class Question:
    """What the DAG asks, and about which rows.

    :param name: of letters, digits and underscores.
    :param asked: columns in the prompt.
    :param model: ``None`` for a dry run without one.
    """

    name: str
    source: str
    columns: Columns
    asked: Sequence[str]
    destination: str
    model: str | None
    conn_id: str
    aws_conn_id: str | None

    @property
    def dag_id(self) -> str:
        """Of the DAG."""
        return f"ask_about_{self.name}"

    @property
    def asked_shown(self) -> str:
        """The columns in the prompt, for people."""
        return ", ".join(map(repr, self.asked))

    @property
    def prompt(self) -> str:
        """A row template."""
        lines = [f"{_label(name)}: {placeholder(name)}" for name in self.asked]
        return "\n".join(("Describe this in one sentence.", *lines))

    def arguments(self) -> dict[str, Any]:
        """The operator's, before the folder of each run."""
        engine = {"engine": "echo"} if self.model is None else {"model": self.model}
        return {
            "source": self.source,
            **({"format": self.columns.format} if self.columns.format else {}),
            **({"csv_options": self.columns.csv_options} if self.columns.csv_options else {}),
            "prompt": self.prompt,
            **engine,
            "sampling": {"temperature": 0, "max_tokens": 64},
            "destination": self.destination,
        }


def dag_text(question: Question) -> str:
    """The DAG file.

    :raises SpecError: the operator refuses an argument, such as a path with a Jinja expression.
    """
    build_spec(question.arguments())
    return "\n".join(_lines(question)) + "\n"


def _lines(question: Question) -> Iterator[str]:
    given = question.arguments()
    needs_literal = _has_jinja(question.prompt)
    rows = count_of(question.columns.rows, "row")
    yield f"# Written by `raybatch init` for a file of {rows}, which has these columns:"
    yield from _listed(question.columns.names)
    yield "#"
    yield "# The job reaches Ray through an Airflow connection. For a private Ray on this machine, once:"
    yield f"#   airflow connections add {_shell(question.conn_id)} --conn-type ray --conn-host local"
    yield "# For a cluster, name the host of its dashboard: --conn-host ray-head.example.com --conn-port 8265"
    yield ""
    yield f"from airflow.sdk import dag{', literal' if needs_literal else ''}"
    yield "from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator"
    yield ""
    yield ""
    yield '@dag(schedule=None)  # To run each night: schedule="@daily", and start_date.'
    yield f"def {question.dag_id}():"
    yield "    RayBatchInferenceOperator("
    yield '        task_id="ask",'
    yield f"        ray_conn_id={_quoted(question.conn_id)},"
    if question.aws_conn_id is not None:
        yield f"        aws_conn_id={_quoted(question.aws_conn_id)},"
    for name, value in given.items():
        yield from (f"        # {line}" for line in _comments(question).get(name, ()))
        yield from _argument(name, value)
    yield "        # A failed row is a dead letter. More than this share of them fails the task."
    yield "        max_error_fraction=0.01,"
    yield "    )"
    yield ""
    yield ""
    yield f"{question.dag_id}()"


def _comments(question: Question) -> dict[str, Sequence[str]]:
    """What to change next, above the argument."""
    return {
        "source": (
            "A file, a folder or a glob; the cluster's nodes must see it under this path, or in s3://.",
        ),
        "prompt": (
            "Change the question. {row.name} and {row['any name']} are filled in with each row's values.",
        ),
        "engine": (
            "A dry run: it answers each row with its prompt. For a model, replace this line by a Hugging",
            'Face id or a folder, such as model="Qwen/Qwen2.5-0.5B-Instruct".',
        ),
        "model": ("A Hugging Face id, or a folder that the cluster's nodes see.",),
        "sampling": ("Of vLLM; max_tokens bounds a response.",),
        "destination": ("A folder for each run; a local one must be one that the cluster's nodes share.",),
    }


def _argument(name: str, value: Any) -> Iterator[str]:
    if name == "destination":
        value = f"{value}/{_RUN}/"
    if name != "prompt":
        yield f"        {name}={_quoted(value)},"
        return
    yield f"        {name}={'literal' if _has_jinja(value) else ''}("
    yield from (f"            {_quoted(line)}" for line in value.splitlines(keepends=True))
    yield "        ),"


def _quoted(value: Any) -> str:
    """``repr``, with double quotes where that changes nothing else."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_quoted(name)}: {_quoted(one)}' for name, one in value.items())}}}"
    shown = repr(value)
    return f'"{shown[1:-1]}"' if isinstance(value, str) and '"' not in value else shown


def _has_jinja(value: Any) -> bool:
    return isinstance(value, str) and any(start in value for start in _JINJA)


def _label(name: str) -> str:
    """A column's name as text of a prompt: without what a template would read as a placeholder."""
    return " ".join(name.replace("{", " ").replace("}", " ").split())[:60] or "Value"


def _shell(text: str) -> str:
    import shlex

    return shlex.quote(" ".join(text.split()))


def _listed(names: Sequence[str]) -> Iterator[str]:
    """Columns as comments, a few of them in a line."""
    line = "#  "
    for name in names[:_MOST_LISTED]:
        shown = f" {ascii(name) if not name.isprintable() else repr(name)},"
        if len(line) + len(shown) > _WIDTH and line != "#  ":
            yield line
            line = "#  "
        line += shown
    more = len(names) - _MOST_LISTED
    yield line.rstrip(",") + (f", and {more:,} more" if more > 0 else "")
