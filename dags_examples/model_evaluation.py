# SPDX-License-Identifier: Apache-2.0
"""Compare candidate models with the one in use, and promote one that is better.

``model_evaluation``: a benchmark with known answers (`benchmark`) -> each candidate answers it several times
(`answer`, mapped over the candidates) -> a judge compares each candidate's answers with the baseline's, in
both orders (`pair`, `judge`) -> metrics with intervals, paired tests, a table, a plot and a page (`compare`)
-> promote or hold by a rule. A candidate that fails or is incomplete is reported, and never promoted.
``use_promoted_model`` runs when a model is promoted.

To make it yours, change the block "What you change". Environment variables that Airflow's processes may set,
all read when the file is parsed:

* ``RAYBATCH_EXAMPLE_BENCHMARK``: ``.jsonl``, ``.csv`` or ``.parquet``, local or ``s3://``, with the columns
  `id`, `question` and `answer`; default ``data/questions.jsonl`` beside this file.
* ``RAYBATCH_EXAMPLE_CANDIDATES``: JSON, by name: `model`, and `sampling` where it differs; the first one is
  the baseline. Default: two demo models; the baseline adds badly.
* ``RAYBATCH_EXAMPLE_EVALUATION``: folder for the datasets, local or ``s3://``; default in ``$AIRFLOW_HOME``.
* ``RAYBATCH_EXAMPLE_MODEL``: the judge; default the demo model beside this file, which judges badly.
* ``RAYBATCH_EXAMPLE_ENGINE``, ``_CONN_ID``, ``_AWS_CONN_ID`` and ``_DEFERRABLE``: as in
  nightly_synthetic_data.py.

Parameters of a run: `metric` that decides, `least_gain` of it, and `alpha`, the greatest p-value.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, Param, dag, task

from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.workflows.prompts import pairwise_prompt, pairwise_sampling

HERE = Path(__file__).parent
HOME = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "raybatch_example"


def setting(name: str, default: str | Path) -> str:
    return os.environ.get(f"RAYBATCH_EXAMPLE_{name}") or str(default)


# What you change: source, prompt, models.
QUESTIONS = setting("BENCHMARK", HERE / "data/questions.jsonl")
SYSTEM_PROMPT = "Answer with the number only."
PROMPT = "{row.question}"
SAMPLES = 4
JUDGE = setting("MODEL", HERE / "demo_model/model")
CANDIDATES: dict[str, Any] = json.loads(
    setting(
        "CANDIDATES",
        json.dumps({
            "small": {"model": str(HERE / "demo_model/small_model")},
            "demo": {"model": str(HERE / "demo_model/model")},
        }),
    )
)
BASELINE = next(iter(CANDIDATES))

OUTPUT = setting("EVALUATION", HOME / "evaluation")
AWS_CONN_ID = setting("AWS_CONN_ID", "") or None
OF_THIS_RUN = OUTPUT + "/{{ dag_run.run_after | ts_nodash }}"
ON_THE_CLUSTER: dict[str, Any] = {
    "ray_conn_id": setting("CONN_ID", "ray_default"),
    "aws_conn_id": AWS_CONN_ID,
    "deferrable": setting("DEFERRABLE", "false").lower() == "true",
    "poll_interval": 5,
    "engine": setting("ENGINE", "vllm"),
    "reuse": f"{OUTPUT}/responses",  # a candidate that was evaluated before costs nothing
}

PROMOTED = Asset("raybatch_example_promoted_model")


@dag(
    schedule="0 4 * * 6",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    params={
        "metric": Param("exact match", enum=["exact match", "F1", "numeric", f"pass@{SAMPLES}"]),
        "least_gain": Param(0.01, type="number", minimum=0, maximum=1),
        "alpha": Param(0.05, type="number", minimum=0, maximum=1),
    },
    tags=["raybatch"],
)
def model_evaluation() -> None:
    @task(multiple_outputs=False)
    def benchmark(folder: str) -> dict[str, Any]:
        """Return the questions; refuse a question without an answer before any cost."""
        from airflow_provider_raybatch.dataset.errors import UsageError
        from airflow_provider_raybatch.dataset.writer import DatasetWriter
        from airflow_provider_raybatch.workflows.rows import read_raw

        with DatasetWriter(f"{folder}/benchmark", AWS_CONN_ID) as writer:
            for batch in read_raw([QUESTIONS], ["id", "question", "answer"], AWS_CONN_ID):
                for row in batch.to_pylist():
                    if row["broken"] or not all(row[name] for name in ("id", "question", "answer")):
                        what = row["broken"] or "it lacks id, question or answer"
                        raise UsageError(f"benchmark: {row['origin']} is unusable ({what}); correct it.")
                writer.write(batch.select(["id", "question", "answer"]))
        return writer.result

    questions = benchmark(OF_THIS_RUN)
    answer = RayBatchInferenceOperator.partial(
        task_id="answer",
        source=questions,
        system_prompt=SYSTEM_PROMPT,
        prompt=PROMPT,
        max_active_tis_per_dagrun=1,  # more if the cluster has room for several models
        **ON_THE_CLUSTER,
    ).expand_kwargs([
        {
            "model": candidate["model"],
            "sampling": {"temperature": 0.7, "max_tokens": 16, "n": SAMPLES, **candidate.get("sampling", {})},
            "destination": f"{OF_THIS_RUN}/answers/{number}",
        }
        for number, candidate in enumerate(CANDIDATES.values())
    ])

    @task(trigger_rule="all_done", multiple_outputs=False)
    def pair(answers: Any, folder: str) -> list[dict[str, Any]]:
        """Pair each candidate's answers with the baseline's, in both orders."""
        from airflow_provider_raybatch.dataset import Rows
        from airflow_provider_raybatch.dataset.writer import DatasetWriter
        from airflow_provider_raybatch.workflows.pairwise import both_orders

        answered = {candidate_of(one): Rows(one, aws_conn_id=AWS_CONN_ID) for one in answers}
        pairs = []
        for name in [one for one in answered if one != BASELINE and BASELINE in answered]:
            number = list(CANDIDATES).index(name)
            with DatasetWriter(f"{folder}/pairs/{number}", AWS_CONN_ID) as writer:
                for batch in both_orders(answered[name].batches(), answered[BASELINE].batches(), "id"):
                    writer.write(batch)
            pairs.append({**writer.result, "candidate": name})
        return pairs

    pairs = pair(answer.output, OF_THIS_RUN)
    judge = RayBatchInferenceOperator.partial(
        task_id="judge",
        prompt=pairwise_prompt(),
        model=JUDGE,
        sampling=pairwise_sampling(),
        destination=f"{OF_THIS_RUN}/judged/{{{{ ti.map_index }}}}",
        max_active_tis_per_dagrun=1,
        **ON_THE_CLUSTER,
    ).expand(source=pairs)

    @task(trigger_rule="all_done", multiple_outputs=False)
    def compare(
        questions: dict[str, Any],
        answers: Any,
        pairs: Any,
        judged: Any,
        folder: str,
        params: dict[str, Any],
    ) -> dict[str, Any]:
        """Return figures of all candidates, and the decision."""
        import pyarrow as pa

        from airflow_provider_raybatch.dataset import Rows
        from airflow_provider_raybatch.dataset.writer import DatasetWriter
        from airflow_provider_raybatch.workflows.comparison import Candidate, ComparisonReport, Rule, decide
        from airflow_provider_raybatch.workflows.pairwise import settle
        from airflow_provider_raybatch.workflows.scores import exact_match, f1, numeric_equal, score_answers

        scores: dict[str, dict[str, dict[str, float]]] = {}
        for result in answers:
            rows = Rows(result, aws_conn_id=AWS_CONN_ID)
            of_one = scores.setdefault(candidate_of(result), {})
            for metric, score in {"exact match": exact_match, "F1": f1, "numeric": numeric_equal}.items():
                scored = list(score_answers(rows.batches(), score, "id", completions="completions"))
                of_one[metric] = {one.key: one.mean for one in scored}
                if metric == "exact match":
                    of_one[f"pass@{SAMPLES}"] = {one.key: one.passes(SAMPLES) for one in scored}
        texts = {name: pa.string() for name in ("candidate", "metric", "id")}
        schema = pa.schema({**texts, "score": pa.float64()})
        with DatasetWriter(f"{folder}/scores", AWS_CONN_ID) as writer:
            figures = [
                {"candidate": name, "metric": metric, "id": key, "score": score}
                for name, metrics in scores.items()
                for metric, by_key in metrics.items()
                for key, score in by_key.items()
            ]
            writer.write(pa.RecordBatch.from_pylist(figures, schema))

        asked, baseline = Rows(questions, aws_conn_id=AWS_CONN_ID).count, scores.get(BASELINE, {})
        candidates = [
            Candidate.of(name, scores.get(name, {}), asked, None if name == BASELINE else baseline)
            for name in CANDIDATES
        ]
        rule = Rule(params["metric"], params["least_gain"], params["alpha"])
        decision = decide(BASELINE, candidates, rule)
        report = ComparisonReport("Candidates", BASELINE, candidates, decision)
        print(report.as_markdown())
        verdicts = {}
        for result in judged:
            rows = Rows(result, aws_conn_id=AWS_CONN_ID)
            name = list(pairs)[rows.manifests[0].owner.map_index]["candidate"]
            verdicts[name] = asdict(settle(rows.batches()))
        return {
            "promoted": decision.promoted,
            "reason": decision.reason,
            "pairwise": verdicts,
            "scores": writer.result["manifest_uri"],
            **report.write(folder, aws_conn_id=AWS_CONN_ID),
        }

    compared = compare(questions, answer.output, pairs, judge.output, OF_THIS_RUN)

    @task.branch
    def promote_or_hold(compared: dict[str, Any]) -> str:
        print(compared["reason"])
        return "promote" if compared["promoted"] else "hold"

    @task(outlets=[PROMOTED], multiple_outputs=False)
    def promote(compared: dict[str, Any], outlet_events: Any) -> dict[str, Any]:
        promoted = {**CANDIDATES[compared["promoted"]], "name": compared["promoted"]}
        outlet_events[PROMOTED].extra.update(
            promoted, reason=compared["reason"], html_uri=compared["html_uri"]
        )
        return promoted

    @task
    def hold(compared: dict[str, Any]) -> str:
        return str(compared["reason"])

    promote_or_hold(compared) >> [promote(compared), hold(compared)]


@dag(schedule=[PROMOTED], tags=["raybatch"])
def use_promoted_model() -> None:
    @task
    def announce(triggering_asset_events: Any) -> list[str]:
        """Put the code here that makes other DAGs use the model."""
        return [event.extra["reason"] for event in triggering_asset_events[PROMOTED]]

    announce()


def candidate_of(answers: dict[str, Any]) -> str:
    """Return the candidate whose answers a mapped task returned."""
    from airflow_provider_raybatch.dataset import Rows

    (manifest,) = Rows(answers, aws_conn_id=AWS_CONN_ID).manifests
    return list(CANDIDATES)[manifest.owner.map_index]


model_evaluation()
use_promoted_model()
