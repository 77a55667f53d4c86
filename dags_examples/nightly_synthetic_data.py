# SPDX-License-Identifier: Apache-2.0
"""Every night: new questions and answers, repaired, judged and deduplicated, in a DuckDB table.

``nightly_synthetic_data``: topics x personas x samples (`plan`) -> one batch inference that drafts a question
with its answer, repairs drafts that are not whole, and judges by a rubric (`write`) -> rows with a low score,
exact and near duplicates dropped, also of earlier nights; accepted and rejected rows as datasets, and a card
(`accept`) -> DuckDB (`load`). ``report_on_questions`` runs after that. With the host ``local`` in the Ray
connection, the batch inference starts a private Ray on its worker.

To make it yours, change the block "What you change". Environment variables that Airflow's processes may set,
all read when the file is parsed:

* ``RAYBATCH_EXAMPLE_SOURCE``: topics, local or ``s3://``; default ``data/topics.jsonl`` beside this file.
* ``RAYBATCH_EXAMPLE_OUTPUT``: folder for the datasets, local or ``s3://``; default in ``$AIRFLOW_HOME``.
* ``RAYBATCH_EXAMPLE_WAREHOUSE``: the DuckDB file; default in ``$AIRFLOW_HOME``.
* ``RAYBATCH_EXAMPLE_MODEL``: default the demo model beside this file, which knows 85 topics.
* ``RAYBATCH_EXAMPLE_ENGINE``: ``vllm`` (default), or ``echo`` for a dry run without a model.
* ``RAYBATCH_EXAMPLE_CONN_ID``: the Ray cluster's connection, default ``ray_default``.
* ``RAYBATCH_EXAMPLE_AWS_CONN_ID``: connection for ``s3://``; default none: each machine's own identity.
* ``RAYBATCH_EXAMPLE_DEFERRABLE``: ``true`` frees the worker while a job runs; default ``false``.

Parameters of a run: `limit`, to try the first so many topics; `min_share` of rows that must end with a judged
answer, 0 to 1; `min_score` of the judge, 1 to 5.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, Param, dag, task

from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.steps import Step
from airflow_provider_raybatch.workflows.prompts import Rubric, repair_messages

HERE = Path(__file__).parent
HOME = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "raybatch_example"


def setting(name: str, default: str | Path) -> str:
    return os.environ.get(f"RAYBATCH_EXAMPLE_{name}") or str(default)


# What you change: source, prompt, model.
SOURCE, SEED_COLUMNS = setting("SOURCE", HERE / "data/topics.jsonl"), ["topic_id", "topic"]
PERSONAS = {
    "quizmaster": "You write short quizzes.",
    "teacher": "You write questions and answers for a school.",
}
SAMPLES = 2
SYSTEM_PROMPT = "{row.instruction} Answer in JSON."
PROMPT = "Write one question and answer about: {row.topic}"
TEXT = {"type": "string", "minLength": 1, "maxLength": 300}
SCHEMA = {
    "type": "object",
    "properties": {"question": TEXT, "answer": TEXT},
    "required": ["question", "answer"],
    "additionalProperties": False,
}
# The schema is the model's grammar, so only a draft that is cut off needs a repair. The demo model's answers
# have 19 to 41 tokens: with 32, about one in seven does. Give another model 300.
DRAFT_TOKENS = 32
COMPARED = ["question", "answer"]
RUBRIC = Rubric(
    "Is the answer right, and does it answer the question?",
    {1: "wrong, or no answer", 3: "partly right", 5: "right"},
    max_reason=100,
)
MODEL = setting("MODEL", HERE / "demo_model/model")

OUTPUT = setting("OUTPUT", HOME / "questions")
WAREHOUSE = Path(setting("WAREHOUSE", HOME / "warehouse.duckdb"))
AWS_CONN_ID = setting("AWS_CONN_ID", "") or None
NIGHT = "{{ dag_run.run_after | ts_nodash }}"
OF_TONIGHT = f"{OUTPUT}/{NIGHT}"
QUESTIONS = Asset("raybatch_example_questions")


def judge(name: str, of: str) -> Step:
    """Judge what another step has written, in rows in which it has."""
    return Step(
        name,
        prompt=RUBRIC.prompt(f"{of}_question", f"{of}_answer"),
        response_format=RUBRIC.schema(),
        when=(f"{of}_question", "is not null"),
    )


STEPS = [
    Step(
        "draft",
        system_prompt=SYSTEM_PROMPT,
        prompt=PROMPT,
        sampling={"temperature": 0.7, "max_tokens": DRAFT_TOKENS},
        response_format=SCHEMA,
        on_truncated="error",
        on_rejected="continue",
    ),
    Step(
        "repair",
        messages=repair_messages(PROMPT, SCHEMA, "draft_response", "draft_rejected", SYSTEM_PROMPT),
        response_format=SCHEMA,
        when=("draft_rejected", "is not null"),
    ),
    judge("judge", of="draft"),
    judge("rejudge", of="repair"),
]
# A row has either a draft that is whole or a repair.
ANSWERS = {
    **{name: [f"draft_{name}", f"repair_{name}"] for name in SCHEMA["properties"]},
    "score": ["judge_score", "rejudge_score"],
    "judgement": ["judge_reason", "rejudge_reason"],
}


@dag(
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    params={
        "limit": Param(None, type=["null", "integer"], minimum=1),
        "min_share": Param(0.9, type="number", minimum=0, maximum=1),
        "min_score": Param(4, type="integer", minimum=1, maximum=5),
    },
    tags=["raybatch"],
)
def nightly_synthetic_data() -> None:
    @task(multiple_outputs=False)
    def plan(folder: str, params: dict[str, Any]) -> dict[str, Any]:
        """Seeds x personas x samples."""
        from itertools import islice

        import pyarrow as pa

        from airflow_provider_raybatch.dataset.writer import DatasetWriter
        from airflow_provider_raybatch.workflows.rows import read_raw

        read = (row for batch in read_raw([SOURCE], SEED_COLUMNS, AWS_CONN_ID) for row in batch.to_pylist())
        seeds = (row for row in read if row["broken"] is None)
        texts = [*SEED_COLUMNS, "persona", "instruction"]
        schema = pa.schema([*((name, pa.string()) for name in texts), ("sample", pa.int64())])
        samples = [
            {"persona": name, "instruction": text, "sample": sample}
            for name, text in PERSONAS.items()
            for sample in range(SAMPLES)
        ]
        with DatasetWriter(f"{folder}/planned", AWS_CONN_ID) as writer:
            writer.write(pa.RecordBatch.from_pylist([], schema))
            for seed in islice(seeds, params["limit"]):
                writer.write(pa.RecordBatch.from_pylist([{**seed, **one} for one in samples], schema))
        return writer.result

    # No `reuse`: it would give each row last night's draft again, and a new draft has no repair or judgement
    # yet. A retry or a cleared task goes on with the answers in its destination.
    write = RayBatchInferenceOperator(
        task_id="write",
        source=plan(OF_TONIGHT),
        steps=STEPS,
        model=MODEL,
        sampling={"temperature": 0, "max_tokens": 384},
        destination=f"{OF_TONIGHT}/written",
        max_error_fraction="{{ (1 - params.min_share) | round(6) }}",
        engine=setting("ENGINE", "vllm"),
        ray_conn_id=setting("CONN_ID", "ray_default"),
        aws_conn_id=AWS_CONN_ID,
        deferrable=setting("DEFERRABLE", "false").lower() == "true",
        poll_interval=2,
    )

    @task(multiple_outputs=False)
    def accept(written: dict[str, Any], folder: str, night: str, params: dict[str, Any]) -> dict[str, Any]:
        """Write accepted rows as a new version of one dataset, rejected ones with reasons, and a card."""
        from airflow_provider_raybatch.dataset import Rows
        from airflow_provider_raybatch.dataset.writer import DatasetWriter
        from airflow_provider_raybatch.workflows.accepted import Accepted, remember
        from airflow_provider_raybatch.workflows.card import Card
        from airflow_provider_raybatch.workflows.duplicates import ExactDuplicates, NearDuplicates
        from airflow_provider_raybatch.workflows.filters import Threshold
        from airflow_provider_raybatch.workflows.minhash import Shingles
        from airflow_provider_raybatch.workflows.rows import failed_rows, first_values
        from airflow_provider_raybatch.workflows.sift import Funnel, sift

        columns = [*SEED_COLUMNS, "persona", "sample", "draft_rejected"]
        columns += [name for names in ANSWERS.values() for name in names]
        answers = first_values(Rows(written, aws_conn_id=AWS_CONN_ID).batches(columns), ANSWERS)
        index, short = f"{OUTPUT}/index", Shingles("char", 5)
        earlier = Accepted(index, night, AWS_CONN_ID)
        # The score comes first, so that no bad row makes a good one a duplicate.
        checks = [
            Threshold("score", least=params["min_score"]),
            ExactDuplicates(COMPARED, "topic_id", earlier),
            NearDuplicates(COMPARED, "topic_id", 0.8, short, earlier),
        ]
        names = (f"{OUTPUT}/accepted", f"{folder}/rejected")
        accepted, rejected = (DatasetWriter(name, AWS_CONN_ID) for name in names)
        with accepted, rejected:
            funnel = sift(answers, checks, accepted, rejected)
            for batch in failed_rows(written, "write", rejected.schema, AWS_CONN_ID):
                rejected.write(batch)
        rows = Rows(accepted.result, aws_conn_id=AWS_CONN_ID)
        remember(rows, index, night, COMPARED, "topic_id", short, AWS_CONN_ID)

        prompts = {step["name"]: step["prompt"] for step in STEPS if "prompt" in step}
        card = Card(f"Questions of {night}", {"min_score": params["min_score"]}, prompts)
        card.funnel = Funnel.of_run("write", written, AWS_CONN_ID).joined(funnel)
        card.add_run("write", written, MODEL, AWS_CONN_ID)
        card.add_samples("accepted", rows)
        card.add_samples("rejected", Rows(rejected.result, aws_conn_id=AWS_CONN_ID))
        return {
            **accepted.result,
            "rejected": rejected.result["manifest_uri"],
            "output_tokens": written["tokens"]["output"],
            **card.write(folder, aws_conn_id=AWS_CONN_ID),
        }

    @task(outlets=[QUESTIONS])
    def load(accepted: dict[str, Any], run_id: str, outlet_events: Any) -> int:
        import duckdb
        import pyarrow as pa

        from airflow_provider_raybatch.dataset import Rows

        columns = ["topic_id", "topic", "persona", "question", "answer", "score"]
        batches = Rows(accepted, aws_conn_id=AWS_CONN_ID).batches(columns)
        questions = pa.Table.from_batches(batches)
        WAREHOUSE.parent.mkdir(parents=True, exist_ok=True)
        with duckdb.connect(str(WAREHOUSE)) as warehouse:
            warehouse.register("tonight", questions)
            warehouse.begin()
            warehouse.execute(
                "CREATE TABLE IF NOT EXISTS questions (run_id TEXT, topic_id BIGINT, topic TEXT, "
                "persona TEXT, question TEXT, answer TEXT, score BIGINT)"
            )
            # A run that is cleared replaces its own rows.
            warehouse.execute("DELETE FROM questions WHERE run_id = ?", [run_id])
            warehouse.execute("INSERT INTO questions SELECT ?, * FROM tonight", [run_id])
            warehouse.commit()
        outlet_events[QUESTIONS].extra.update(accepted)
        return questions.num_rows

    load(accept(write.output, OF_TONIGHT, NIGHT))


@dag(schedule=[QUESTIONS], tags=["raybatch"])
def report_on_questions() -> None:
    @task
    def report(triggering_asset_events: Any) -> list[dict[str, Any]]:
        names = ("uri", "rows", "rejected", "output_tokens", "card_uri")
        reports = [
            {name: event.extra[name] for name in names} for event in triggering_asset_events[QUESTIONS]
        ]
        print(*reports, sep="\n")
        return reports

    report()


nightly_synthetic_data()
report_on_questions()
