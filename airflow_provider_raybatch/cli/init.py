# SPDX-License-Identifier: Apache-2.0
"""``raybatch init``: a DAG file for a file of rows."""

from __future__ import annotations

import re
import shlex
import unicodedata
from argparse import Namespace
from pathlib import Path

from airflow_provider_raybatch.cli.dag_text import DagQuestion, dag_text
from airflow_provider_raybatch.cli.file_columns import columns_of
from airflow_provider_raybatch.cli.places import absolute, absolute_folder, s3_access
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.location import WILDCARDS
from airflow_provider_raybatch.contract.text import clean, count_of

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
