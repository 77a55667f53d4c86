# SPDX-License-Identifier: Apache-2.0
"""The verbs that report on a batch inference before it runs, as plain data."""

from __future__ import annotations

from airflow_provider_raybatch.cli.option import Option, Verb
from airflow_provider_raybatch.cli.task_options import TASK_OPTIONS

_COMMON = (
    Option("--json", action="store_true", help="write one JSON document instead of tables"),
    Option(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long the job on the cluster may take; by default 600",
    ),
)

PREVIEW_VERBS = (
    Verb(
        name="preview",
        function="preview:show_preview",
        summary="Show what rows would be asked, with tokens and request keys",
        description=(
            "Show rows as a job would ask them: rendered messages, tokens, request keys, which rows have "
            "an answer already, and what would be refused. A job without GPUs on the cluster reports it, "
            "and writes nothing to the destination. With --ask, a warm engine answers the rows, or one "
            "that starts on the GPUs that a replica of the task would have. Of several steps the prompts of "
            "later ones are shown with --ask, since they read answers."
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
            *_COMMON,
        ),
    ),
    Verb(
        name="plan",
        function="plan:show_plan",
        summary="Show how long prompts are, and each size of the job with its reason",
        description=(
            "Show rows and bytes of the source, how many tokens the prompts of each step have (and how those "
            "of images were counted), what a smaller max_model_len would cut off, and each size that the job "
            "would have on the cluster as it is now. Where the task has a dataset at its destination or "
            "beside it, also time and cost at that run's rates, unless model, engine or GPUs have changed. A "
            "job without GPUs reports it; it starts no engine, and writes nothing to the destination."
        ),
        examples=(
            "plan --dag dags/nightly.py --task label",
            "plan --source s3://lake/reviews/ --argument prompt_column=text --model Qwen/Qwen3-8B --all-rows",
        ),
        options=(
            *TASK_OPTIONS,
            Option("--all-rows", action="store_true", help="count tokens of all rows, also beyond 50,000"),
            Option("--seed", type=int, metavar="N", help="which rows are counted where there are more"),
            *_COMMON,
        ),
    ),
)
