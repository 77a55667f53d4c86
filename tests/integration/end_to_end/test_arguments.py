# SPDX-License-Identifier: Apache-2.0
"""Authors' arguments through Airflow's own runner: rendered, converted, or refused at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_raybatch.dataset import open_dataset

from .inputs import batch
from .lake import Lake
from .ray_jobs import RayJobs
from .rest import AirflowApi, Task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Refusal:
    """A run that must fail at once.

    :param on_cluster: whether only the job's own preflight can find it.
    """

    conf: dict[str, Any]
    sentence: str
    on_cluster: bool = False
    dag_id: str = "batch_blocking"


REFUSALS = {
    "relative_destination": Refusal(
        {"destination": "out/rows"},
        "destination: 'out/rows' is relative, and on the cluster that is a folder which Ray deletes; write",
    ),
    "column_without_row": Refusal(
        {"prompt": "{row.text} is {text}"},
        "prompt: '{text}' is taken as text, but 'text' is a column; write {row.text} for its value, or "
        "{'{text}'} for the text {text}.",
        on_cluster=True,
    ),
    "double_braces": Refusal(
        {}, "prompt: a column stands in double braces, which Airflow fills in", dag_id="double_braces"
    ),
}


@pytest.fixture(scope="module")
def tasks(
    api: AirflowApi, jobs: RayJobs, lake: Lake, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Task]:
    """All wrong tasks at once, and one that is right."""
    lake.connect(api, "lake_keys")
    lake.write_rows("arguments/rows.jsonl", ({"text": f"one two three {n}"} for n in range(10)))
    folder = tmp_path_factory.mktemp("arguments")
    tasks = {
        "templates": api.trigger(
            "templated",
            aws_conn_id="lake_keys",
            source="s3://lake/arguments/",
            destination="s3://lake/out/arguments",
            seconds=2,
        ).task("infer")
    }
    for name, refusal in REFUSALS.items():
        conf = batch(folder, ["a"], name, **refusal.conf)
        tasks[name] = api.trigger(refusal.dag_id, **{**conf, **refusal.conf}).task("infer")
    tasks["templates"].run.wait(timeout=300)
    for name in REFUSALS:
        tasks[name].run.wait("failed", timeout=300)
    return tasks


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_is_one_sentence_and_no_retry(name: str, tasks: dict[str, Task], jobs: RayJobs) -> None:
    task, refusal = tasks[name], REFUSALS[name]
    assert any(refusal.sentence in line for line in task.log()), task.log()
    assert task.read()["try_number"] == 1
    assert len(jobs.of(task)) == int(refusal.on_cluster)


def test_templates_and_xcoms_reach_every_argument(
    tasks: dict[str, Task], jobs: RayJobs, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tasks["templates"].xcom()
    assert result["rows"] == 10
    keys = lake.contents(result["key_prefix"])
    assert result["uri"].startswith("s3://lake/out/arguments/20")
    assert len(keys) == 1
    lake.open_to_this_process(monkeypatch)
    rows = open_dataset(result).to_arrow().to_pylist()
    # The prefix is a template, and max_tokens was the text "2" in it.
    assert {row["llm_echo_output_tokens"] for row in rows} == {2}
    assert tasks["templates"].read()["rendered_fields"]["max_errors"] == 3  # from an XCom


@pytest.mark.parametrize("as_stored", [True, False])
def test_connection_that_the_docs_name_can_be_tested(api: AirflowApi, jobs: RayJobs, as_stored: bool) -> None:
    """Airflow's form sends all stored fields, with a masked password."""
    stored = api.call("GET", "connections/ray_default")
    form = {name: stored[name] for name in ("connection_id", "conn_type", "host", "port", "schema")}
    if not as_stored:
        form |= {"connection_id": "ray_unsaved", "port": 0, "host": f"http://{form['host']}:{form['port']}"}
    answer = api.call(
        "POST", "connections/test", json={**form, "login": "", "password": "***", "extra": "{}"}
    )
    assert answer["status"], answer
    assert "answers at" in answer["message"]
