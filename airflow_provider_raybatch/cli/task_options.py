# SPDX-License-Identifier: Apache-2.0
"""The options that name a batch inference: a task of a DAG file, or the operator's arguments."""

from __future__ import annotations

from airflow_provider_raybatch.cli.option import Option

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
"""For verbs about one batch inference; :func:`~.task_of.batch_task` reads them."""
