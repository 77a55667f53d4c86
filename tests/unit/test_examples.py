# SPDX-License-Identifier: Apache-2.0
"""The example DAGs as Airflow parses them, and the demo's output. Integration tests run them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.programs import program

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
ON_KUBERNETES = {
    "left_clusters": ["delete_left"],
    "questions_on_one_cluster": ["create_cluster", "delete_cluster", "embed", "generate", "judge"],
}

# It runs in a process of its own: parsing reads the environment and fills Airflow's registry.
LIST = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag({folder!r})
write = bag.dags["nightly_synthetic_data"].task_dict["write"]
print(json.dumps({{
    "errors": bag.import_errors,
    "tasks": {{name: sorted(dag.task_dict) for name, dag in bag.dags.items()}},
    "mapped": [name for dag in bag.dags.values() for name, one in dag.task_dict.items() if one.is_mapped],
    "destination": write.destination,
    "deferrable": write.deferrable,
    "ray_conn_id": write.ray_conn_id,
    "aws_conn_id": write.aws_conn_id,
    "loads": [asset.name for asset in bag.dags["nightly_synthetic_data"].task_dict["load"].outlets],
    "waits_for": [asset.name for asset in bag.dags["report_on_questions"].timetable.asset_condition.objects],
    "heavy": sorted({{"pyarrow", "scipy", "matplotlib", "rensa"}} & set(sys.modules)),
}}))
"""


def parsed(home: Path, **settings: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAYBATCH_")}
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", LIST.format(folder=str(EXAMPLES))],
        env={**environment, "AIRFLOW_HOME": str(home), **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_folder_holds_its_dags_and_needs_no_setting(tmp_path: Path) -> None:
    found = parsed(tmp_path)
    assert (found["errors"], found["heavy"]) == ({}, [])
    assert found["tasks"] == {
        "nightly_synthetic_data": ["accept", "load", "plan", "write"],
        "report_on_questions": ["report"],
        "data_curation": ["curate", "label", "sieve"],
        "model_evaluation": [
            "answer", "benchmark", "compare", "hold", "judge", "pair", "promote", "promote_or_hold",
        ],
        "use_promoted_model": ["announce"],
        **(ON_KUBERNETES if (EXAMPLES / "shared_cluster.py").exists() else {}),
    }  # fmt: skip
    assert sorted(found["mapped"]) == ["answer", "judge"]
    assert found["waits_for"] == found["loads"]
    assert found["destination"].startswith(str(tmp_path))
    assert (found["deferrable"], found["ray_conn_id"], found["aws_conn_id"]) == (False, "ray_default", None)


def test_the_environment_sets_paths_connections_and_mode(tmp_path: Path) -> None:
    found = parsed(
        tmp_path,
        RAYBATCH_EXAMPLE_OUTPUT="s3://lake/questions",
        RAYBATCH_EXAMPLE_DEFERRABLE="true",
        RAYBATCH_EXAMPLE_CONN_ID="ray_gpu",
        RAYBATCH_EXAMPLE_AWS_CONN_ID="aws_lake",
    )
    assert found["errors"] == {}
    assert found["destination"] == "s3://lake/questions/{{ dag_run.run_after | ts_nodash }}/written"
    assert (found["deferrable"], found["ray_conn_id"], found["aws_conn_id"]) == (True, "ray_gpu", "aws_lake")


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    return program("dags_examples/run_demo.py", "run_demo")


OPERATOR = "airflow.task.operators.airflow_provider_raybatch.operators.ray_batch.RayBatchInferenceOperator"


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        ({"logger": OPERATOR, "event": "198 of 200 rows (99.0 %)"}, "198 of 200 rows (99.0 %)"),
        ({"logger": OPERATOR, "event": "2026-11-21 09:41:33,061 INFO job_manager.py: Runtime env"}, ""),
        ({"logger": OPERATOR, "event": "[2026-11-21 09:40:00,293 E 1617 1833] core_worker.cc: x"}, ""),
        ({"logger": "airflow.models.dag", "event": "198 of 200 rows"}, ""),
        ({"logger": "airflow.sdk", "event": "[DAG TEST] starting task_id=load map_index=-1"}, "== task load"),
        ("no JSON at all", ""),
    ],
)
def test_demo_shows_the_events_of_the_job(
    demo: ModuleType, capsys: pytest.CaptureFixture[str], record: Any, shown: str
) -> None:
    demo.show_event(record if isinstance(record, str) else json.dumps(record), 0.0)
    out = capsys.readouterr().out.strip()
    assert out.endswith(shown) if shown else out == ""


def test_demo_ends_with_the_error_of_a_failed_task(demo: ModuleType) -> None:
    failed = {"event": "Task failed", "error_detail": [{"exc_type": "E", "exc_value": "source: nothing."}]}
    with pytest.raises(SystemExit, match=r"^demo: source: nothing\. The whole log is "):
        demo.show_event(json.dumps(failed), 0.0)


def test_the_demo_has_an_airflow_of_its_own(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://production")
    monkeypatch.setenv("RAY_ADDRESS", "ray://production")
    environment = demo.environment()
    assert "production" not in str(environment)
    assert environment["AIRFLOW_HOME"] == str(demo.HOME / "airflow")


@pytest.fixture(scope="module")
def examples() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        return importlib.import_module("run_examples")


def manifest(task_id: str, ok: int, paid: list[int]) -> bytes:
    """Return the manifest of a batch inference with so many generated tokens."""
    replicas = [{"input_tokens": tokens, "output_tokens": 1} for tokens in paid]
    return json.dumps({"owner": {"task_id": task_id}, "counts": {"ok": ok}, "replicas": replicas}).encode()


def test_night_is_summarized_from_what_it_wrote(examples: ModuleType) -> None:
    card = {"funnel": [{"step": "input", "rows": 2000}, {"step": "last", "rows": 1270}]}
    curation = {
        "corpus/nights/one/card.json": json.dumps(card).encode(),
        "corpus/nights/one/labelled/manifest.json": manifest("label", 1800, [90, 9]),
        "corpus/nights/one/labelled/manifests/one.json": manifest("label", 1800, [90, 9]),
        "corpus/curated/manifest.json": b'{"kind": "derived"}',
        "corpus/curated/data/one/part-00000.parquet": b"PAR1",
    }
    night = examples.night_of("data_curation", curation, 61.2)
    assert (night.rows, night.accepted, night.tokens) == (2000, "1,270", 101)
    decision = {"promoted": None, "reason": "a tie"}
    evaluation = {
        "evaluation/one/comparison.json": json.dumps({"decision": decision}).encode(),
        "evaluation/one/answers/0/manifest.json": manifest("answer", 300, [4]),
        "evaluation/one/answers/1/manifest.json": manifest("answer", 300, []),
        "evaluation/one/judged/0/manifest.json": manifest("judge", 600, [6]),
    }
    held = examples.night_of("model_evaluation", evaluation, 5)
    assert (held.rows, held.accepted, held.tokens) == (600, "none", 12)
    shown = examples.table([night, held, night]).splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [
        ["data_curation", "1"], ["model_evaluation", "1"], ["data_curation", "2"],
    ]  # fmt: skip
    assert shown[1].endswith("/.demo/lake/corpus/nights/one/card.json")


def test_the_first_night_lacks_the_late_documents(examples: ModuleType) -> None:
    class Bucket(dict[str, bytes]):
        put = dict.__setitem__

    early, whole = Bucket(), Bucket()
    examples.put_data(early, late=40)
    examples.put_data(whole)
    keys = {"data/topics.jsonl", "data/questions.jsonl", "data/documents/forum.jsonl"}
    assert set(early) == {*keys, "data/documents/library.jsonl"} == set(whole)
    lines = {name: bucket["data/documents/library.jsonl"].splitlines() for name, bucket in
             (("early", early), ("whole", whole))}  # fmt: skip
    assert lines["early"] == lines["whole"][:-40]
    assert all(early[key] == whole[key] for key in keys)
