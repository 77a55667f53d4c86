# SPDX-License-Identifier: Apache-2.0
"""Verbs and their options as plain data, from which both parsers are made."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    Option("--system-prompt", metavar="TEXT", help="row template of the system message"),
    Option("--model", metavar="NAME", help="Hugging Face id, or a folder"),
    Option("--chat-template", metavar="FILE", help="file with a chat template, or its text"),
    Option("--sampling", metavar="JSON", help="vLLM's sampling parameters, a JSON object"),
    Option("--engine", choices=("vllm", "ray_data_llm", "echo"), help="engine; echo needs no model"),
    Option("--engine-args", metavar="JSON", help="vLLM's engine arguments, a JSON object"),
    Option("--destination", metavar="URI", help="folder of the dataset"),
    Option("--reuse", metavar="URI", help="folder of a response store"),
    Option(
        "--argument",
        action="append",
        metavar="NAME=VALUE",
        help="any other argument of RayBatchInferenceOperator; can be repeated",
    ),
    Option("--conn-id", metavar="ID", help="Airflow connection of type ray; by default the task's"),
    Option("--aws-conn-id", metavar="ID", help="an aws connection for s3://; by default the task's"),
    Option("--hf-conn-id", metavar="ID", help="connection with a Hugging Face token; by default the task's"),
)
"""They name a batch inference, a task of a DAG file or the operator's arguments, for
:func:`~.task_of.batch_task`."""
