# SPDX-License-Identifier: Apache-2.0
"""The verbs as plain data, from which both parsers are made: options, help, and the functions behind them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PROGRAM = "raybatch"
SUMMARY = "Batch inference on Ray: look before a run, and at what came of it"
_WIDTH = 90


class Option:
    """An argument of a verb.

    :param flags: as ``add_argument`` of argparse takes them.
    :param settings: those of argparse that Airflow's ``Arg`` knows as well: `help`, `action`, `default`,
        `nargs`, `type`, `choices`, `metavar`, `dest`.
    """

    def __init__(self, *flags: str, help: str, **settings: Any) -> None:
        self.flags = flags
        self.settings: Mapping[str, Any] = {"help": help, **settings}


@dataclass(frozen=True)
class Verb:
    """One command.

    :param function: ``module:name`` below ``airflow_provider_raybatch.cli``; called with the parsed options.
    :param summary: one line in the list of verbs.
    :param description: what it does.
    :param examples: lines of a shell, without the program's name.
    """

    name: str
    function: str
    summary: str
    description: str
    examples: tuple[str, ...]
    options: tuple[Option, ...]

    @property
    def wrapped(self) -> str:
        """The description in lines for help."""
        return textwrap.fill(self.description, _WIDTH)

    def epilog(self, program: str) -> str:
        """The examples, as help shows them."""
        return "\n".join(("examples:", *(f"  {program} {example}" for example in self.examples)))


TASK_OPTIONS = (
    Option("--dag", metavar="FILE", help="a DAG file; needs --task where it has several batch inferences"),
    Option(
        "--task", metavar="ID", help="id of the task in it; with several DAGs in the file: DAG_ID.TASK_ID"
    ),
    Option(
        "--date",
        metavar="DATE",
        help="logical date of the run that templates are rendered for, in ISO 8601; by default now",
    ),
    Option(
        "--set",
        action="append",
        metavar="TASK=VALUE",
        help="what an earlier task returned, as JSON or text, or TASK:KEY=VALUE for another of its XComs; "
        "can be repeated",
    ),
    Option("--conf", metavar="JSON", help="configuration of the run, a JSON object; it overrides params"),
    Option(
        "--map-index", type=int, metavar="N", help="which instance of a mapped task; by default the first"
    ),
    Option("--source", nargs="+", metavar="URI", help="files, folders or globs instead of the task's"),
    Option("--prompt", metavar="TEXT", help="row template, such as 'Summarise: {row.text}'"),
    Option("--model", metavar="NAME", help="Hugging Face id, or a folder"),
    Option("--engine", choices=("vllm", "ray_data_llm", "echo"), help="engine; echo needs no model"),
    Option("--destination", metavar="URI", help="folder of the dataset"),
    Option(
        "--argument",
        action="append",
        metavar="NAME=VALUE",
        help="any other argument of RayBatchInferenceOperator, its value as text or JSON; can be repeated",
    ),
    Option("--conn-id", metavar="ID", help="Airflow connection of type ray; by default the task's"),
    Option("--aws-conn-id", metavar="ID", help="an aws connection for s3://; by default the task's"),
    Option("--hf-conn-id", metavar="ID", help="connection with a Hugging Face token; by default the task's"),
)
"""They name a batch inference, a task of a DAG file or the operator's arguments, for
:func:`~.task_of.batch_task`."""

_AWS_CONN_ID = Option(
    "--aws-conn-id", metavar="ID", help="an aws connection for s3://; by default the environment's identity"
)
_FORMAT = Option(
    "--format",
    choices=("table", "jsonl"),
    default="table",
    help="a table as wide as the terminal (default), or one JSON object a line, with whole values",
)
_OF_PREVIEWS = (
    Option("--json", action="store_true", help="write one JSON document instead of tables"),
    Option(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long the job on the cluster may take; by default 600",
    ),
)

VERBS = (
    Verb(
        name="init",
        function="init:write_dag",
        summary="Write a DAG file for a CSV, JSONL or Parquet file",
        description=(
            "Write a DAG that asks a question about the texts and images of each row of a file. Without "
            "--model it is a dry run without a model. Comments in the file say what to change next."
        ),
        examples=(
            "init companies.csv",
            "init reviews.parquet --model Qwen/Qwen2.5-0.5B-Instruct -o dags/reviews.py",
            "init reviews.parquet --embed",
        ),
        options=(
            Option("file", metavar="FILE", help="a CSV, JSONL, Parquet or Arrow file: local, s3:// or hf://"),
            Option(
                "--format",
                choices=("parquet", "jsonl", "csv", "arrow"),
                help="where the file's name doesn't tell",
            ),
            Option(
                "-o", "--output", metavar="FILE", help="the DAG file; by default NAME_dag.py in this folder"
            ),
            Option("--force", action="store_true", help="replace a DAG file that exists"),
            Option("--embed", action="store_true", help="make a vector of the longest text of each row"),
            Option("--steps", action="store_true", help="ask in two steps: an answer, and a check of it"),
            Option("--model", metavar="NAME", help="Hugging Face id, or a folder"),
            Option("--destination", metavar="URI", help="where responses go; by default beside the file"),
            Option("--conn-id", default="ray_default", metavar="ID", help="connection of type ray"),
            _AWS_CONN_ID,
        ),
    ),
    Verb(
        name="preview",
        function="preview:show_preview",
        summary="Show what rows would be asked, with tokens and request keys",
        description=(
            "Show rows as a job would ask them: rendered messages, tokens, request keys, which rows have "
            "an answer already, and what would be refused. It runs a job without GPUs on the cluster, and "
            "writes nothing to the destination. With --ask, a warm engine answers the rows, or a new one on "
            "the GPUs of one replica. Prompts of later steps need --ask, since they read answers."
        ),
        examples=(
            "preview --dag dags/nightly.py --task label",
            "preview --dag dags/nightly.py --task label --date 2026-11-30 --rows 20 --seed 7",
            "preview --dag dags/nightly.py --task label --rows 3 --ask",
            "preview --source in.csv --prompt 'Summarise: {row.text}' --engine echo --json",
        ),
        options=(
            *TASK_OPTIONS,
            Option("--rows", type=int, default=10, metavar="N", help="1 to 100 rows, by default 10"),
            Option(
                "--seed", type=int, metavar="N", help="show a random sample by this seed, not the first rows"
            ),
            Option(
                "--ask",
                nargs="?",
                type=int,
                default=0,
                metavar="N",
                help="also get the engine's answers to the first N of these rows; without N to all of them, "
                "at most 20",
            ),
            *_OF_PREVIEWS,
        ),
    ),
    Verb(
        name="plan",
        function="plan:show_plan",
        summary="Show how long prompts are, and each size of the job with its reason",
        description=(
            "Show rows and bytes of the source, tokens of each step's prompts (and how those of images were "
            "counted), what a smaller max_model_len would cut off, and each size of the job on the cluster "
            "as it is now. If the task has a dataset at its destination or beside it, also time and cost at "
            "that run's rates, unless model, engine or GPUs have changed. It runs a job without GPUs, starts "
            "no engine, and writes nothing to the destination."
        ),
        examples=(
            "plan --dag dags/nightly.py --task label",
            "plan --source s3://lake/reviews/ --argument prompt_column=text --model Qwen/Qwen3-8B --all-rows",
        ),
        options=(
            *TASK_OPTIONS,
            Option("--all-rows", action="store_true", help="count tokens of all rows, also beyond 50,000"),
            Option("--seed", type=int, metavar="N", help="which rows are counted where there are more"),
            *_OF_PREVIEWS,
        ),
    ),
    Verb(
        name="show",
        function="show:show",
        summary="Show a finished dataset, its failed rows, a response store, or warm engines",
        description=(
            "Show what lies at a place. Of a dataset that a batch inference has committed these are its "
            "first rows, files and counts, or the dead letters beside it, each with the step that failed "
            "and the reason. Of a response store it is how many responses it holds, how old they are, and "
            "the bytes of its files. With --engines, show the engines that keep_warm has left on the GPUs "
            "of a cluster; a job on the cluster does it, so it takes some seconds."
        ),
        examples=(
            "show s3://lake/industries/20261130T000000/",
            "show out/ --failed",
            "show out/ --failed --limit 0 --format jsonl > failed.jsonl",
            "show s3://lake/responses/ --compact",
            "show --engines --conn-id gpu_cluster --end",
        ),
        options=(
            Option(
                "place",
                nargs="?",
                metavar="URI_OR_FOLDER",
                help="a destination, a manifest's uri, a folder of runs' destinations (the last by name), or "
                "what a task has as reuse=",
            ),
            Option("--failed", action="store_true", help="the dead letters in place of the dataset"),
            Option(
                "--limit", type=int, default=20, metavar="N", help="at most N rows, default 20; 0 for all"
            ),
            _FORMAT,
            _AWS_CONN_ID,
            Option(
                "--compact",
                action="store_true",
                help="first merge a store's index, and delete what has expired",
            ),
            Option("--engines", action="store_true", help="the warm engines of a cluster"),
            Option(
                "--conn-id",
                metavar="ID",
                help="Airflow connection of type ray for --engines; by default ray_default",
            ),
            Option("--end", action="store_true", help="end those engines that no job uses"),
        ),
    ),
    Verb(
        name="report",
        function="report:show_report",
        summary="Show how a run went: rows, reasons, cost, samples",
        description=(
            "Show the report of a run from its destination: rows and reasons of failed ones, cost, answers "
            "and samples, each number beside the last dataset's. By default the newest run is shown."
        ),
        examples=(
            "report s3://lake/industries/",
            "report out/ --open",
            "report out/ --run scheduled__2026-11-30T02:00:00+00:00 --json",
            "report out/ --card README.md --without-content",
        ),
        options=(
            Option(
                "place",
                metavar="URI_OR_FOLDER",
                help="a destination, a folder of runs' destinations, or the uri of a manifest or a report",
            ),
            Option("--run", metavar="RUN_ID", help="id of the DAG run; by default the newest"),
            Option("--open", action="store_true", help="open the page in a browser"),
            Option("--output", metavar="FILE", help="write the page as HTML; it replaces the file"),
            Option(
                "--card",
                nargs="?",
                default="",
                metavar="FILE",
                help="write a dataset card in Markdown, by default to stdout; it replaces the file",
            ),
            Option("--json", action="store_true", help="write the report as one JSON document"),
            Option("--without-content", action="store_true", help="leave out samples, examples and answers"),
            _AWS_CONN_ID,
        ),
    ),
)
"""In the order of a user's way."""
