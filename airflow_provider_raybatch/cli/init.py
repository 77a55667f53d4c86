# SPDX-License-Identifier: Apache-2.0
"""``raybatch init``: a DAG file for a file of rows."""

from __future__ import annotations

import re
import shlex
import textwrap
import unicodedata
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from airflow_provider_raybatch.cli.file_columns import FileColumns, columns_of
from airflow_provider_raybatch.cli.places import absolute, absolute_folder, s3_access
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.location import WILDCARDS
from airflow_provider_raybatch.contract.row_template import placeholder
from airflow_provider_raybatch.contract.text import clean, count_of
from airflow_provider_raybatch.operators.arguments import build_spec

_MOST_LISTED = 20
_WIDTH = 100
_JINJA = ("{{", "{%", "{#")
_RUN = "{{ dag_run.run_after | ts_nodash }}"


@dataclass(frozen=True)
class DagQuestion:
    """What the DAG asks, and about which rows.

    :param name: of letters, digits and underscores.
    :param asked: columns in the prompt.
    :param verb: what the task does with a row: asks about it, embeds it, or asks in steps.
    :param model: ``None`` for a dry run without one.
    """

    name: str
    source: str
    columns: FileColumns
    asked: Sequence[str]
    destination: str
    model: str | None
    conn_id: str
    aws_conn_id: str | None
    verb: Literal["ask", "embed", "steps"] = "ask"

    @property
    def task_id(self) -> str:
        """Of the one task."""
        return "embed" if self.verb == "embed" else "ask"

    @property
    def dag_id(self) -> str:
        """Of the DAG."""
        return f"embed_{self.name}" if self.verb == "embed" else f"ask_about_{self.name}"

    @property
    def shown(self) -> str:
        """What the task does with which columns, for people."""
        images = [f"the images of {name!r}" for name in self.images]
        columns = ", ".join((*map(repr, self.asked), *images))
        return f"it embeds {columns}" if self.verb == "embed" else f"it asks about {columns}"

    @property
    def images(self) -> Sequence[str]:
        """Columns of images that the model is shown."""
        return () if self.verb == "embed" else self.columns.images

    @property
    def prompt(self) -> str:
        """A row template."""
        if self.verb == "embed":
            return "\n".join(map(placeholder, self.asked))
        lines = [f"{_label(name)}: {placeholder(name)}" for name in self.asked]
        return "\n".join((f"Describe {'the image' if self.images else 'this'} in one sentence.", *lines))

    def _request(self) -> dict[str, Any]:
        images: dict[str, Any] = {"images": list(self.images)} if self.images else {}
        hosts = {"image_hosts": list(self.columns.image_hosts)} if images and self.columns.image_hosts else {}
        if self.verb == "embed":
            return {"model_task": "embed", "prompt": self.prompt}
        if self.verb == "ask":
            return {"prompt": self.prompt, **({"images": {**images, **hosts}} if hosts else images)}
        check = f"{self.prompt}\nAnswer: {placeholder('answer_response')}\nIs this answer right?"
        choice = {"structured_outputs": {"choice": ["yes", "no"]}}
        return {
            "steps": [
                {"name": "answer", "prompt": self.prompt, **images},
                {"name": "check", "prompt": check, "sampling": choice, **images},
            ],
            **({"images": hosts} if hosts else {}),
        }

    def arguments(self) -> dict[str, Any]:
        """The operator's, before the folder of each run."""
        engine = {"engine": "echo"} if self.model is None else {"model": self.model}
        return {
            "source": self.source,
            **({"format": self.columns.format} if self.columns.format else {}),
            **({"csv_options": self.columns.csv_options} if self.columns.csv_options else {}),
            **self._request(),
            **engine,
            **({} if self.verb == "embed" else {"sampling": {"temperature": 0, "max_tokens": 64}}),
            "destination": self.destination,
        }


def dag_text(question: DagQuestion) -> str:
    """The DAG file.

    :raises SpecError: the operator refuses an argument, such as a path with a Jinja expression.
    """
    build_spec(question.arguments())
    return "\n".join(_lines(question)) + "\n"


def _lines(question: DagQuestion) -> Iterator[str]:
    given = question.arguments()
    rows = count_of(question.columns.rows, "row")
    yield f"# Written by `raybatch init` for a file of {rows}, which has these columns:"
    yield from _listed(question.columns.names)
    yield "#"
    yield "# The job reaches Ray through an Airflow connection. For a private Ray on this machine, once:"
    conn_id = shlex.quote(" ".join(question.conn_id.split()))
    yield f"#   airflow connections add {conn_id} --conn-type ray --conn-host local"
    yield "# For a cluster, name the host of its dashboard: --conn-host ray-head.example.com --conn-port 8265"
    yield ""
    yield f"from airflow.sdk import dag{', literal' if _has_jinja(question.prompt) else ''}"
    yield "from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator"
    if question.verb == "steps":
        yield "from airflow_provider_raybatch.steps import Step"
    yield ""
    yield ""
    yield '@dag(schedule=None)  # To run each night: schedule="@daily", and start_date.'
    yield f"def {question.dag_id}():"
    yield "    RayBatchInferenceOperator("
    yield f"        task_id={_quoted(question.task_id)},"
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


def _comments(question: DagQuestion) -> dict[str, Sequence[str]]:
    """What to change next, above the argument."""
    hosts = {"images": ("Images are fetched from these hosts alone.",)}
    return {
        "source": (
            "A file, a folder or a glob; the cluster's nodes must see it under this path, or in s3://.",
        ),
        "prompt": (
            "Change the question. {row.name} and {row['any name']} are filled in with each row's values.",
        ),
        "model_task": ("A vector of the text that prompt has for each row; it takes an embedding model.",),
        "steps": ("Change the questions. Each step may read the columns of those before it.",),
        "engine": (
            "A dry run: it answers each row with its prompt. For a model, replace this line by a Hugging",
            'Face id or a folder, such as model="Qwen/Qwen2.5-0.5B-Instruct".',
        ),
        "model": ("A Hugging Face id, or a folder that the cluster's nodes see.",),
        "sampling": ("Of vLLM; max_tokens bounds a response.",),
        **(hosts if question.columns.image_hosts else {}),
        "destination": ("A folder for each run; a local one must be one that the cluster's nodes share.",),
    }


def _argument(name: str, value: Any, indent: str = " " * 8) -> Iterator[str]:
    if name == "destination":
        value = f"{value}/{_RUN}/"
    if name == "steps":
        yield f"{indent}steps=["
        for step in value:
            yield f"{indent}    Step("
            for inner, given in step.items():
                yield from _argument(inner, given, f"{indent}        ")
            yield f"{indent}    ),"
        yield f"{indent}],"
    elif name == "prompt":
        yield f"{indent}prompt={'literal' if _has_jinja(value) else ''}("
        yield from (f"{indent}    {_quoted(line)}" for line in value.splitlines(keepends=True))
        yield f"{indent}),"
    else:
        yield f"{indent}{name}={_quoted(value)},"


def _quoted(value: Any) -> str:
    """``repr``, with double quotes where that changes nothing else."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_quoted(name)}: {_quoted(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_quoted, value))}]"
    shown = repr(value)
    return f'"{shown[1:-1]}"' if isinstance(value, str) and '"' not in value else shown


def _has_jinja(value: Any) -> bool:
    return isinstance(value, str) and any(start in value for start in _JINJA)


def _label(name: str) -> str:
    """A column's name as text of a prompt: without what a template would read as a placeholder."""
    return " ".join(name.replace("{", " ").replace("}", " ").split())[:60] or "Value"


def _listed(names: Sequence[str]) -> Sequence[str]:
    """Columns as comments, a few of them in a line."""
    shown = [ascii(name) if not name.isprintable() else repr(name) for name in names[:_MOST_LISTED]]
    shown += [f"and {len(names) - _MOST_LISTED:,} more"] if len(names) > _MOST_LISTED else []
    return textwrap.wrap(
        ", ".join(shown), _WIDTH, initial_indent="#   ", subsequent_indent="#   ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


_MOST_ASKED = 3
"""Text columns in the prompt."""
_OF_BUCKET = 3
"""Parts of ``s3://bucket`` between slashes."""


def write_dag(options: Namespace) -> None:
    """Look at the file and write the DAG beside where the user is.

    :raises SpecError: the file has no rows or is not data, or the DAG file exists already.
    """
    if options.embed and options.steps:
        raise SpecError("embed: steps generate text, and no vectors; give one of the two.")
    source = absolute(options.file)
    found = columns_of(source, options.format, s3_access(source, options.aws_conn_id))
    if options.embed and not found.askable:
        raise SpecError(f"embed: {source} has no column with text; leave --embed out.")
    name = _name_of(source)
    path = Path(options.output or f"{name}_dag.py")
    question = DagQuestion(
        name=name,
        source=source,
        columns=found,
        asked=sorted(found.askable[: 1 if options.embed else _MOST_ASKED], key=list(found.names).index),
        destination=absolute(options.destination or _destination(source, name)).rstrip("/"),
        model=None if options.model is None else absolute_folder(options.model),
        conn_id=options.conn_id,
        aws_conn_id=options.aws_conn_id,
        verb="embed" if options.embed else "steps" if options.steps else "ask",
    )
    text = dag_text(question)
    try:
        with path.open("w" if options.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SpecError(
            f"output: {path} exists already; give another name, or --force to replace it."
        ) from None
    except OSError as error:
        raise SpecError(
            f"output: {path} can't be written ({error.strerror}); name a file in a folder that exists."
        ) from None
    _tell(question, path)


def _tell(question: DagQuestion, path: Path) -> None:
    found, quoted = question.columns, shlex.quote(str(path))
    columns = f"{count_of(found.rows, 'row')}, {count_of(len(found.names), 'column')}"
    print(f"Wrote {path}: {columns}; {question.shown}.")
    for note in found.notes(question.asked):
        print(f"Note: {clean(note)}")
    print("Read the comments in it. Then:")
    print(f"  raybatch preview --dag {quoted}")
    print(f"  raybatch plan --dag {quoted}")
    if (copying := _copying(path, quoted)) is not None:
        print(f"  {copying}")
    print(f"  airflow dags test {question.dag_id}")
    print(f"  raybatch show {shlex.quote(question.destination)}")


def _copying(path: Path, quoted: str) -> str | None:
    """How the file gets into Airflow's DAG folder; ``None`` if it is there."""
    from airflow.sdk import conf

    dags = Path(conf.get("core", "dags_folder"))
    if path.resolve().is_relative_to(dags.resolve()):
        return None
    folder = shlex.quote(str(dags))
    return f"cp {quoted} {folder}/" if dags.is_dir() else f"mkdir -p {folder} && cp {quoted} {folder}/"


def _name_of(source: str) -> str:
    """A name for files and Python alike, from a file's name."""
    stem = re.split(r"[/\\]", source.rstrip("/"))[-1].partition(".")[0]
    stem = unicodedata.normalize("NFKD", stem)  # letters without their accents
    stem = "".join(one for one in stem if not unicodedata.combining(one))
    return re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")[:60] or "rows"


def _destination(source: str, name: str) -> str:
    """A folder beside the source, from which the source reads nothing."""
    if not source.startswith(("/", "s3://")):
        return f"{Path.cwd()}/{name}_responses"
    parts = source.rstrip("/").split("/")
    first = next((place for place, part in enumerate(parts) if WILDCARDS & set(part)), len(parts) - 1)
    if parts[first] == "**":  # it reads all below its folder
        first -= 1
    if source.startswith("s3://") and first < _OF_BUCKET:
        raise SpecError(f"destination: {source} reads a whole bucket; name a folder in another one.")
    return f"{'/'.join(parts[:first])}/{name}_responses"
