# SPDX-License-Identifier: Apache-2.0
"""Every night: raw documents become a curated corpus, and each dropped document names its rule.

``data_curation``: raw documents of several sources -> readable, running text in the wanted language (`sieve`)
-> a model labels quality and topic of the survivors (`label`) -> exact and near duplicates, low quality and
unwanted topics dropped (`curate`) -> Parquet with Hive partitions, dropped documents, and a card with the
funnel: remaining documents and tokens after each step.

The next night pays tokens only for new and changed documents, and a changed threshold costs none: labels are
kept by request in ``responses/``.

To make it yours, change the block "What you change". Environment variables that Airflow's processes may set,
all read when the file is parsed:

* ``RAYBATCH_EXAMPLE_DOCUMENTS``: files or folders of ``.jsonl``, ``.csv`` or ``.parquet``, local or
  ``s3://``, separated by commas; default ``data/documents`` beside this file.
* ``RAYBATCH_EXAMPLE_CORPUS``: folder for the datasets, local or ``s3://``; default in ``$AIRFLOW_HOME``.
* ``RAYBATCH_EXAMPLE_MODEL``: default the demo model beside this file, made for these documents.
* ``RAYBATCH_EXAMPLE_EMBEDDER``: an embedding model, such as one of sentence-transformers. With it, documents
  that say the same in other words are dropped, too; default none.
* ``RAYBATCH_EXAMPLE_ENGINE``, ``_CONN_ID``, ``_AWS_CONN_ID`` and ``_DEFERRABLE``: as in
  nightly_synthetic_data.py.

Parameters of a run: `min_quality` of the label, 1 to 5; `topics` that stay; `similarity`, 0.5 to 1, from
which a document is a near duplicate; `cosine` of two vectors, from which their documents mean the same.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, Param, dag, task

from airflow_provider_raybatch.arguments import Output
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

HERE = Path(__file__).parent
HOME = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "raybatch_example"


def setting(name: str, default: str | Path) -> str:
    return os.environ.get(f"RAYBATCH_EXAMPLE_{name}") or str(default)


# What you change: source, prompt, model.
SOURCES = setting("DOCUMENTS", HERE / "data/documents").split(",")
LANGUAGES = ["en"]
TOPICS = ["people", "places", "trade", "other"]
LABELS = {
    "type": "object",
    "properties": {"quality": {"type": "integer", "enum": [1, 2, 3, 4, 5]}, "topic": {"enum": TOPICS}},
    "required": ["quality", "topic"],
    "additionalProperties": False,
}
PROMPT = "Rate the quality of this text from 1 to 5, and name its topic.\n\n{row.text}"
MODEL = setting("MODEL", HERE / "demo_model/model")

EMBEDDER = setting("EMBEDDER", "")

OUTPUT = setting("CORPUS", HOME / "corpus")
AWS_CONN_ID = setting("AWS_CONN_ID", "") or None
ON_THE_CLUSTER: dict[str, Any] = {
    "ray_conn_id": setting("CONN_ID", "ray_default"),
    "aws_conn_id": AWS_CONN_ID,
    "deferrable": setting("DEFERRABLE", "false").lower() == "true",
    "poll_interval": 5,
    "engine": setting("ENGINE", "vllm"),
    "max_error_fraction": 0.1,
    "reuse": f"{OUTPUT}/responses",
}
OF_TONIGHT = OUTPUT + "/nights/{{ dag_run.run_after | ts_nodash }}"

CORPUS = Asset("raybatch_example_corpus")


@dag(
    schedule="0 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    params={
        "min_quality": Param(3, type="integer", minimum=1, maximum=5),
        "topics": Param(TOPICS, type="array", items={"enum": TOPICS}),
        "similarity": Param(0.7, type="number", minimum=0.5, maximum=1),
        "cosine": Param(0.95, type="number", exclusiveMinimum=0, maximum=1),
    },
    tags=["raybatch"],
)
def data_curation() -> None:
    @task(multiple_outputs=True)
    def sieve(folder: str) -> dict[str, Any]:
        """Drop documents that need no model."""
        from airflow_provider_raybatch.dataset.writer import DatasetWriter
        from airflow_provider_raybatch.workflows.filters import Heuristics, LanguageFilter
        from airflow_provider_raybatch.workflows.rows import Unbroken, read_raw
        from airflow_provider_raybatch.workflows.sift import count_tokens, sift

        documents = count_tokens(read_raw(SOURCES, ["text"], AWS_CONN_ID))
        steps = [Unbroken(), Heuristics(), LanguageFilter(LANGUAGES)]
        kept, dropped = (DatasetWriter(f"{folder}/{name}", AWS_CONN_ID) for name in ("sieved", "unfit"))
        with kept, dropped:
            funnel = sift(documents, steps, kept, dropped, tokens="tokens")
        return {"kept": kept.result, "dropped": dropped.result, "funnel": funnel.as_json()}

    sieved = sieve(OF_TONIGHT)
    label = RayBatchInferenceOperator(
        task_id="label",
        source=sieved["kept"],
        prompt=PROMPT,
        model=MODEL,
        sampling={"temperature": 0, "max_tokens": 32, "structured_outputs": {"json": LABELS}},
        destination=f"{OF_TONIGHT}/labelled",
        **ON_THE_CLUSTER,
    )
    embedded = None
    if EMBEDDER:
        embedded = RayBatchInferenceOperator(
            task_id="embed",
            source=label.output,
            prompt_column="text",
            model=EMBEDDER,
            model_task="embed",
            on_overlong="truncate",
            output_prefix="embed_",
            output_options=Output(response_column="embedding"),
            destination=f"{OF_TONIGHT}/embedded",
            **ON_THE_CLUSTER,
        ).output

    @task(outlets=[CORPUS], multiple_outputs=False)
    def curate(
        sieved: dict[str, Any],
        labelled: dict[str, Any],
        folder: str,
        params: dict[str, Any],
        outlet_events: Any,
        embedded: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        from airflow_provider_raybatch.dataset import Rows
        from airflow_provider_raybatch.dataset.writer import DatasetWriter
        from airflow_provider_raybatch.workflows.card import Card
        from airflow_provider_raybatch.workflows.duplicates import (
            ExactDuplicates,
            NearDuplicates,
            SemanticDuplicates,
        )
        from airflow_provider_raybatch.workflows.filters import SchemaCheck, Threshold
        from airflow_provider_raybatch.workflows.rows import failed_rows
        from airflow_provider_raybatch.workflows.sift import Funnel, sift

        steps = [
            SchemaCheck(LABELS, name="labels"),
            ExactDuplicates(["text"], "origin"),
            NearDuplicates(["text"], "origin", params["similarity"]),
            Threshold("quality", least=params["min_quality"]),
            Threshold("topic", labels=params["topics"]),
            *([SemanticDuplicates("embedding", "origin", params["cosine"])] if embedded else []),
        ]
        documents = Rows(embedded or labelled, aws_conn_id=AWS_CONN_ID)
        curated = DatasetWriter(f"{OUTPUT}/curated", AWS_CONN_ID, partition_by=["language", "topic"])
        refused, dropped = (DatasetWriter(f"{folder}/{name}", AWS_CONN_ID) for name in ("refused", "dropped"))
        with curated, refused:
            columns = [*Rows(sieved["kept"], aws_conn_id=AWS_CONN_ID).schema.names, "response"]
            columns += ["embedding"] if embedded else []
            funnel = sift(documents.batches(columns), steps, curated, refused, tokens="tokens")
        gone = Rows(sieved["dropped"], refused.result, aws_conn_id=AWS_CONN_ID)
        with dropped:
            for batch in gone.batches():
                dropped.write(batch)
            for step, result in {"label": labelled, **({"embed": embedded} if embedded else {})}.items():
                for batch in failed_rows(result, step, gone.schema, AWS_CONN_ID):
                    dropped.write(batch)

        card = Card("Curated documents", facts={"sources": ", ".join(SOURCES), **params})
        card.prompts["label"] = PROMPT
        card.funnel = Funnel.from_json(sieved["funnel"]).joined(funnel)
        card.add_run("label", labelled, MODEL, AWS_CONN_ID)
        if embedded:
            card.add_run("embed", embedded, EMBEDDER, AWS_CONN_ID)
        card.add_samples("curated", Rows(curated.result, aws_conn_id=AWS_CONN_ID))
        card.add_samples("dropped", Rows(dropped.result, aws_conn_id=AWS_CONN_ID))
        print(card.funnel.as_markdown())
        result = {
            **curated.result,
            "dropped": dropped.result["manifest_uri"],
            **card.write(folder, aws_conn_id=AWS_CONN_ID),
        }
        outlet_events[CORPUS].extra.update(result)
        return result

    curate(sieved, label.output, OF_TONIGHT, embedded=embedded)


data_curation()
