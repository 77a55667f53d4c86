# SPDX-License-Identifier: Apache-2.0
"""Every night: new questions and answers, checked, repaired, deduplicated and judged, in a DuckDB table.

``nightly_synthetic_data``: topics x personas -> several samples each (`generate`) -> schema check, and one
more request for answers that fail it (`repair`) -> exact and near duplicates dropped, also of earlier nights
-> a model judges the rest by a rubric (`judge`) -> accepted and rejected rows as datasets, a card -> DuckDB.
``report_on_questions`` runs after that. With the host ``local`` in the Ray connection, each batch
inference starts a private Ray on its worker.

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

Parameters of a run: `limit`, to try the first so many topics; `min_share` of answers that fit the schema in
the end, 0 to 1; `min_score` of the judge, 1 to 5.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, Param, dag, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
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
SYSTEM_PROMPT = "{row.instruction} Answer in JSON."
PROMPT = "Write one question and answer about: {row.topic}"
TEXT = {"type": "string", "minLength": 1, "maxLength": 300}
SCHEMA = {
    "type": "object",
    "properties": {"question": TEXT, "answer": TEXT},
    "required": ["question", "answer"],
    "additionalProperties": False,
}
SAMPLES = 2
COMPARED = ["question", "answer"]
RUBRIC = Rubric(
    "Is the answer right, and does it answer the question?",
    {1: "wrong, or no answer", 3: "partly right", 5: "right"},
    max_reason=100,
)
MODEL = JUDGE = setting("MODEL", HERE / "demo_model/model")

OUTPUT = setting("OUTPUT", HOME / "questions")
WAREHOUSE = Path(setting("WAREHOUSE", HOME / "warehouse.duckdb"))
AWS_CONN_ID = setting("AWS_CONN_ID", "") or None

# For repair and judge: requests of other nights cost nothing. `generate` needs new samples each night.
REUSE = f"{OUTPUT}/responses"
NIGHT = "{{ dag_run.run_after | ts_nodash }}"
OF_TONIGHT = f"{OUTPUT}/{NIGHT}"
ON_THE_CLUSTER: dict[str, Any] = {
    "ray_conn_id": setting("CONN_ID", "ray_default"),
    "aws_conn_id": AWS_CONN_ID,
    "deferrable": setting("DEFERRABLE", "false").lower() == "true",
    "poll_interval": 2,
    "engine": setting("ENGINE", "vllm"),
}


def skip_without_rows(context: Any) -> None:
    """Skip a batch inference that has nothing to ask, instead of submitting a job for it."""
    from airflow_provider_raybatch.workflows.rows import Rows

    if Rows(context["task"].source, aws_conn_id=AWS_CONN_ID).count == 0:
        raise AirflowSkipException("Every answer fits the schema, so there is nothing to repair.")


GENERATED = Asset("raybatch_example_generated")
QUESTIONS = Asset("raybatch_example_questions")


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
        """Seeds x personas."""
        from itertools import islice

        import pyarrow as pa

        from airflow_provider_raybatch.workflows.raw_documents import read_raw
        from airflow_provider_raybatch.workflows.writer import DatasetWriter

        read = (row for batch in read_raw([SOURCE], SEED_COLUMNS, AWS_CONN_ID) for row in batch.to_pylist())
        seeds = (row for row in read if row["broken"] is None)
        names = [*SEED_COLUMNS, "persona", "instruction"]
        schema = pa.schema([(name, pa.string()) for name in names])
        with DatasetWriter(f"{folder}/planned", AWS_CONN_ID) as writer:
            writer.write(pa.RecordBatch.from_pylist([], schema))
            for seed in islice(seeds, params["limit"]):
                rows = [{**seed, "persona": name, "instruction": text} for name, text in PERSONAS.items()]
                writer.write(pa.RecordBatch.from_pylist(rows, schema))
        return writer.result

    generate = RayBatchInferenceOperator(
        task_id="generate",
        source=plan(OF_TONIGHT),
        system_prompt=SYSTEM_PROMPT,
        prompt=PROMPT,
        model=MODEL,
        sampling={"temperature": 0.7, "n": SAMPLES, "max_tokens": 96},
        destination=f"{OF_TONIGHT}/generated",
        max_error_fraction=0.1,
        outlets=[GENERATED],
        **ON_THE_CLUSTER,
    )

    @task(multiple_outputs=True)
    def check(generated: dict[str, Any], folder: str) -> dict[str, Any]:
        """Find the answers that fit the schema."""
        from airflow_provider_raybatch.workflows.rows import Rows
        from airflow_provider_raybatch.workflows.samples import one_row_a_sample
        from airflow_provider_raybatch.workflows.schema_check import SchemaCheck
        from airflow_provider_raybatch.workflows.sift import sift
        from airflow_provider_raybatch.workflows.writer import DatasetWriter

        answers = one_row_a_sample(Rows(generated, aws_conn_id=AWS_CONN_ID).batches())
        valid, failed = (DatasetWriter(f"{folder}/{name}", AWS_CONN_ID) for name in ("valid", "failed"))
        with valid, failed:
            funnel = sift(answers, [SchemaCheck(SCHEMA)], valid, failed)
        return {"valid": valid.result, "failed": failed.result, "funnel": funnel.as_json()}

    checked = check(generate.output, OF_TONIGHT)
    repair = RayBatchInferenceOperator(
        task_id="repair",
        source=checked["failed"],
        messages=repair_messages(PROMPT, SCHEMA, system_prompt=SYSTEM_PROMPT),
        model=MODEL,
        sampling={"temperature": 0, "max_tokens": 384, "structured_outputs": {"json": SCHEMA}},
        destination=f"{OF_TONIGHT}/repaired",
        output_prefix="repaired_",
        reuse=REUSE,
        max_error_fraction=1.0,  # rows that can't be repaired are rejected
        pre_execute=skip_without_rows,
        **ON_THE_CLUSTER,
    )

    @task(multiple_outputs=True, trigger_rule="none_failed")
    def deduplicate(
        checked: dict[str, Any],
        repaired: dict[str, Any] | None,
        folder: str,
        night: str,
        params: dict[str, Any],
    ) -> dict[str, Any]:
        """Keep new questions only; stop a night with too few valid ones."""
        from airflow_provider_raybatch.workflows.accepted import Accepted
        from airflow_provider_raybatch.workflows.duplicates import ExactDuplicates, NearDuplicates
        from airflow_provider_raybatch.workflows.minhash import Shingles
        from airflow_provider_raybatch.workflows.rows import Rows
        from airflow_provider_raybatch.workflows.schema_check import SchemaCheck
        from airflow_provider_raybatch.workflows.sift import sift
        from airflow_provider_raybatch.workflows.writer import DatasetWriter

        names = ("second", "unrepaired", "unique", "duplicates")
        second, unrepaired, unique, duplicates = (
            DatasetWriter(f"{folder}/{name}", AWS_CONN_ID) for name in names
        )
        passed, rejected = [checked["valid"]], []
        if repaired is not None:
            with second, unrepaired:
                again = Rows(repaired, aws_conn_id=AWS_CONN_ID).batches()
                sift(again, [SchemaCheck(SCHEMA, "repaired_response", name="repair")], second, unrepaired)
            passed, rejected = [*passed, second.result], [unrepaired.result]
        valid = Rows(*passed, aws_conn_id=AWS_CONN_ID)
        asked = checked["funnel"][0]["rows"]
        if valid.count < params["min_share"] * asked:
            raise AirflowFailException(f"min_share: only {valid.count} of {asked} answers fit the schema.")
        earlier = Accepted(f"{OUTPUT}/index", night, AWS_CONN_ID)
        steps = [
            ExactDuplicates(COMPARED, "topic_id", earlier),
            NearDuplicates(COMPARED, "topic_id", 0.8, Shingles("char", 5), earlier),
        ]
        with unique, duplicates:
            columns = [*SEED_COLUMNS, "persona", "sample", *SCHEMA["properties"]]
            funnel = sift(valid.batches(columns), steps, unique, duplicates)
        return {
            "unique": unique.result,
            "rejected": [*rejected, duplicates.result],
            "funnel": [*checked["funnel"], {**funnel.as_json()[0], "step": "repair"}, *funnel.as_json()[1:]],
        }

    unique = deduplicate(checked, repair.output, OF_TONIGHT, NIGHT)
    judge = RayBatchInferenceOperator(
        task_id="judge",
        source=unique["unique"],
        prompt=RUBRIC.prompt("question", "answer"),
        model=JUDGE,
        sampling=RUBRIC.sampling(),
        destination=f"{OF_TONIGHT}/judged",
        output_prefix="judge_",
        reuse=REUSE,
        max_error_fraction=0.1,
        **ON_THE_CLUSTER,
    )

    @task(multiple_outputs=False, trigger_rule="none_failed")
    def accept(
        generated: dict[str, Any],
        repaired: dict[str, Any] | None,
        unique: dict[str, Any],
        judged: dict[str, Any],
        folder: str,
        night: str,
        params: dict[str, Any],
    ) -> dict[str, Any]:
        """Write accepted rows as a new version of one dataset, rejected ones with reasons, and a card."""
        from airflow_provider_raybatch.workflows.accepted import remember
        from airflow_provider_raybatch.workflows.card import Card
        from airflow_provider_raybatch.workflows.failed_rows import failed_rows
        from airflow_provider_raybatch.workflows.filters import Threshold
        from airflow_provider_raybatch.workflows.funnel import Funnel
        from airflow_provider_raybatch.workflows.minhash import Shingles
        from airflow_provider_raybatch.workflows.rows import Rows
        from airflow_provider_raybatch.workflows.schema_check import SchemaCheck
        from airflow_provider_raybatch.workflows.sift import sift
        from airflow_provider_raybatch.workflows.writer import DatasetWriter

        steps = [
            SchemaCheck(RUBRIC.schema(), "judge_response", name="judgement"),
            Threshold("score", least=params["min_score"]),
        ]
        names = (f"{OUTPUT}/accepted", f"{folder}/refused", f"{folder}/rejected")
        accepted, refused, rejected = (DatasetWriter(name, AWS_CONN_ID) for name in names)
        with accepted, refused:
            funnel = sift(Rows(judged, aws_conn_id=AWS_CONN_ID).batches(), steps, accepted, refused)
        jobs = {"generate": generated, "repair": repaired, "judge": judged}
        runs = {step: result for step, result in jobs.items() if result is not None}
        gone = Rows(*unique["rejected"], refused.result, aws_conn_id=AWS_CONN_ID)
        with rejected:
            for batch in gone.batches():
                rejected.write(batch)
            for step, result in runs.items():
                for batch in failed_rows(result, step, gone.schema, AWS_CONN_ID):
                    rejected.write(batch)
        rows = Rows(accepted.result, aws_conn_id=AWS_CONN_ID)
        remember(rows, f"{OUTPUT}/index", night, COMPARED, "topic_id", Shingles("char", 5), AWS_CONN_ID)

        card = Card(
            f"Questions of {night}", facts={"min_score": params["min_score"], "rubric": RUBRIC.criterion}
        )
        card.prompts = {"generate": PROMPT, "judge": RUBRIC.prompt("question", "answer")}
        card.funnel = Funnel.from_json(unique["funnel"]).joined(funnel)
        for step, result in runs.items():
            card.add_run(step, result, MODEL, AWS_CONN_ID)
        card.add_samples("accepted", rows)
        card.add_samples("rejected", Rows(rejected.result, aws_conn_id=AWS_CONN_ID))
        return {
            **accepted.result,
            "rejected": rejected.result["manifest_uri"],
            "output_tokens": card.as_json()["totals"]["output_tokens"],
            **card.write(folder, aws_conn_id=AWS_CONN_ID),
        }

    @task(outlets=[QUESTIONS])
    def load(accepted: dict[str, Any], run_id: str, outlet_events: Any) -> int:
        import duckdb
        import pyarrow as pa

        from airflow_provider_raybatch.workflows.rows import Rows

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

    load(accept(generate.output, repair.output, unique, judge.output, OF_TONIGHT, NIGHT))


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
