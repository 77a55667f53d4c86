# SPDX-License-Identifier: Apache-2.0
"""Every night: write quiz questions about topics, check them, load the good ones into DuckDB, report on them.

``nightly_synthetic_data``: `generate` asks a model about each row of a JSON lines file, on a Ray cluster;
`quality_gate` stops a bad batch; `load` puts the good pairs into a table. ``report_on_questions`` runs when
they are there. With the host ``local`` in the Ray connection, `generate` starts a private Ray on its worker.

Environment variables that Airflow's processes may set, all read when the file is parsed:

* ``RAYBATCH_EXAMPLE_SOURCE``: topics, local or ``s3://``; default ``data/topics.jsonl`` beside this file.
* ``RAYBATCH_EXAMPLE_OUTPUT``: folder for the datasets, local or ``s3://``; default in ``$AIRFLOW_HOME``.
* ``RAYBATCH_EXAMPLE_WAREHOUSE``: the DuckDB file; default in ``$AIRFLOW_HOME``.
* ``RAYBATCH_EXAMPLE_MODEL``: default the demo model beside this file.
* ``RAYBATCH_EXAMPLE_ENGINE``: ``vllm`` (default), or ``echo`` for a dry run with the parameter `min_share` 0.
* ``RAYBATCH_EXAMPLE_CONN_ID``: the Ray cluster's connection, default ``ray_default``.
* ``RAYBATCH_EXAMPLE_AWS_CONN_ID``: connection for ``s3://``; default none: each machine's own identity.
* ``RAYBATCH_EXAMPLE_DEFERRABLE``: ``true`` frees the worker while the job runs; default ``false``.

Parameters of a run: `limit`, to try the first so many topics; `min_share` of good answers, 0 to 1.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, Param, dag, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_raybatch.dataset import open_dataset
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

HERE = Path(__file__).parent
HOME = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "raybatch_example"


def setting(name: str, default: str | Path) -> str:
    return os.environ.get(f"RAYBATCH_EXAMPLE_{name}") or str(default)


OUTPUT = setting("OUTPUT", HOME / "questions")
WAREHOUSE = Path(setting("WAREHOUSE", HOME / "warehouse.duckdb"))
AWS_CONN_ID = setting("AWS_CONN_ID", "") or None

GENERATED = Asset("raybatch_example_generated")
QUESTIONS = Asset("raybatch_example_questions")

PAIR = {
    "type": "object",
    "properties": {"question": {"type": "string"}, "answer": {"type": "string"}},
    "required": ["question", "answer"],
    "additionalProperties": False,
}
GOOD_PAIRS = """
    SELECT topic_id, topic, response ->> 'question' AS question, response ->> 'answer' AS answer
    FROM batch
    WHERE question LIKE '%?' AND length(answer) > 0
"""


@dag(
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    params={
        "limit": Param(None, type=["null", "integer"], minimum=1),
        "min_share": Param(0.9, type="number", minimum=0, maximum=1),
    },
    tags=["raybatch"],
)
def nightly_synthetic_data() -> None:
    generate = RayBatchInferenceOperator(
        task_id="generate",
        ray_conn_id=setting("CONN_ID", "ray_default"),
        aws_conn_id=AWS_CONN_ID,
        deferrable=setting("DEFERRABLE", "false").lower() == "true",
        poll_interval=5,
        source=setting("SOURCE", HERE / "data/topics.jsonl"),
        limit="{{ params.limit or '' }}",
        system_prompt="Answer in JSON.",
        prompt="Write one question and answer about: {row.topic}",
        model=setting("MODEL", HERE / "demo_model/model"),
        engine=setting("ENGINE", "vllm"),
        sampling={"temperature": 0.7, "max_tokens": 96, "structured_outputs": {"json": PAIR}},
        destination=OUTPUT + "/{{ dag_run.run_after | ts_nodash }}/",
        max_error_fraction=0.1,  # an answer that is not JSON is an error, kept beside the dataset
        outlets=[GENERATED],
    )

    @task
    def quality_gate(generated: dict[str, Any], params: dict[str, Any]) -> int:
        import duckdb

        with duckdb.connect() as memory:
            good = len(open_dataset(generated, AWS_CONN_ID).duckdb(memory).query("batch", GOOD_PAIRS))
        asked = generated["rows"] + generated["errors"]
        if good < params["min_share"] * asked:
            raise AirflowFailException(f"min_share: only {good} of {asked} answers are good.")
        return good

    @task(outlets=[QUESTIONS])
    def load(generated: dict[str, Any], good: int, run_id: str, outlet_events: Any) -> int:
        import duckdb

        WAREHOUSE.parent.mkdir(parents=True, exist_ok=True)
        with duckdb.connect(str(WAREHOUSE)) as warehouse:
            pairs = open_dataset(generated, AWS_CONN_ID).duckdb(warehouse).query("batch", GOOD_PAIRS)
            warehouse.begin()
            warehouse.execute(
                "CREATE TABLE IF NOT EXISTS questions "
                "(run_id TEXT, topic_id BIGINT, topic TEXT, question TEXT, answer TEXT)"
            )
            # A run that is cleared replaces its own rows.
            warehouse.execute("DELETE FROM questions WHERE run_id = ?", [run_id])
            columns = ("topic_id", "topic", "question", "answer")
            pairs.select(duckdb.ConstantExpression(run_id), *columns).insert_into("questions")
            warehouse.commit()
        outlet_events[QUESTIONS].extra.update(generated, good=good)
        return good

    load(generate.output, quality_gate(generate.output))


@dag(schedule=[QUESTIONS], tags=["raybatch"])
def report_on_questions() -> None:
    @task
    def report(triggering_asset_events: Any) -> list[dict[str, Any]]:
        reports = []
        for event in triggering_asset_events[QUESTIONS]:
            manifest = open_dataset(event.extra, AWS_CONN_ID).manifest
            reports.append({
                "uri": manifest.uri,
                "rows": manifest.counts.ok,
                "errors": manifest.counts.error,
                "good": event.extra["good"],
                "output_tokens": manifest.tokens.output,
            })
        print(*reports, sep="\n")
        return reports

    report()


nightly_synthetic_data()
report_on_questions()
