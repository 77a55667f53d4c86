# SPDX-License-Identifier: Apache-2.0
"""What the pages show, asked of Airflow's own API server."""

from __future__ import annotations

import json
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.responses import HTMLResponse

from airflow_provider_raybatch.contract.layout import REPORT_DATA, REPORT_PAGE, manifest_file, report_folder
from airflow_provider_raybatch.plugins.reading import NotShownError, TaskInstance
from airflow_provider_raybatch.report.rendering import render
from airflow_provider_raybatch.storage.folder import LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.airflow_server import Server, ran
from tests.support.report_files import COMMIT, key, leave, manifest, publish
from tests.support.s3_server import S3Server

REPORT = "/raybatch/dags/nightly/runs/night/tasks/label/-1"
NIGHTS = "/raybatch/dags/nightly/tasks/label"


def test_a_report_is_made_anew(server: Server, lake: LocalFolder) -> None:
    """The stored page is not read: whoever writes into the destination could put anything into it."""
    publish(lake, key())
    lake.write(f"{report_folder(COMMIT)}/{REPORT_PAGE}", b"<script>alert(1)</script>")
    ran({"destination": lake.uri})
    answer = server.get(REPORT)
    assert answer.status_code == 200
    assert "alert(1)</script>" not in answer.text
    assert "3 good rows" in answer.text
    assert 'href="javascript' not in answer.text


def test_xcoms_do_not_move_the_report(server: Server, lake: LocalFolder) -> None:
    """An editor of XComs points them to a folder that the server may read, too."""
    publish(lake, key())
    forged = LocalFolder(f"{lake.uri}-forged")
    publish(forged, key(), rows=987_654, total=987_655)
    other = {
        "uri": forged.uri,
        "manifest_uri": f"{forged.uri}/{manifest_file(COMMIT)}",
        "report_uri": forged.uri,
    }
    ran({"destination": lake.uri}, result={"rows": 3, **other})
    for page in ("", "/failed", "/dataset"):
        answer = server.get(REPORT + page)
        assert answer.status_code == 200
        assert "987,654" not in answer.text
        assert "forged" not in answer.text
    assert "forged" not in server.get(NIGHTS).text


def test_a_bucket_by_the_connection_of_the_task(
    server: Server, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"conn_type": "aws", **s3_server.connection()}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(made))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # of the API server's own identity
    bucket = s3_server.new_bucket()
    publish(S3Folder(bucket, "out", s3_server.credentials), key())
    ran({"destination": f"s3://{bucket}/out", "aws_conn_id": "lake"})
    answer = server.get(f"{REPORT}/dataset")
    assert answer.status_code == 200
    assert "aws_conn_id=" in answer.text
    assert f"s3://{bucket}/out/data/{COMMIT}" in answer.text


def test_a_connection_that_can_not_be_used(
    server: Server, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of a report says which one; the log has the reason, which may have what the connection has."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", "extra": {"region_name": "s3cr3t"}})
    )
    for name in ("lake", "none"):
        ran({"destination": "s3://lake/out", "aws_conn_id": name})
        answer = server.get(REPORT)
        assert answer.status_code == 502
        assert f"The connection '{name}' of the task" in unescape(answer.text)
        assert "s3cr3t" not in answer.text


def test_the_namespace_of_the_ray_connection(
    server: Server, lake: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(lake, key(namespace="team-a"))
    ran({"destination": lake.uri, "ray_conn_id": "gpus"})
    assert "no report in the destination" in server.get(REPORT).text
    made = {"conn_type": "ray", "host": "ray-head", "password": "t0ken", "extra": {"namespace": "team-a"}}
    monkeypatch.setenv("AIRFLOW_CONN_GPUS", json.dumps(made))
    answer = server.get(REPORT)
    assert answer.status_code == 200
    assert "t0ken" not in answer.text


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("failed", "In Airflow, the task is <strong>failed</strong>"),
        ("running", "written when the job ends"),
        ("deferred", "written when the job ends"),
        (None, "<strong>no state</strong>"),
    ],
)
def test_no_report_says_the_state_and_where_the_log_is(
    server: Server, lake: LocalFolder, state: str | None, said: str
) -> None:
    """As of a job that was refused before it began."""
    ran({"destination": lake.uri}, state=state)
    for page in ("", "/failed", "/dataset"):
        answer = server.get(REPORT + page)
        assert answer.status_code == 404
        assert said in answer.text
        assert 'href="/dags/nightly/runs/night/tasks/label"' in answer.text


def test_a_job_without_a_dataset(server: Server, lake: LocalFolder) -> None:
    leave(lake, key())
    ran({"destination": lake.uri}, state="failed")
    assert "the engine died" in server.get(REPORT).text
    assert "no file of its failed rows" in server.get(f"{REPORT}/failed").text
    assert "published no dataset" in server.get(f"{REPORT}/dataset").text
    ran({"destination": lake.uri}, state="running")
    assert "the report of an earlier job of this run" in server.get(REPORT).text


def test_failed_rows_of_a_job_without_a_dataset(server: Server, lake: LocalFolder) -> None:
    """Also of one that came after a dataset; a folder elsewhere is not named."""
    publish(lake, key())
    ran({"destination": lake.uri}, state="failed")
    leave(lake, key(), dead_letter_uri=f"{lake.uri}/dead_letter/driver-1")
    assert f"{lake.uri}/dead_letter/driver-1" in server.get(f"{REPORT}/failed").text
    leave(lake, key(), dead_letter_uri="s3://elsewhere/dead_letter/driver-1")
    assert "elsewhere" not in server.get(f"{REPORT}/failed").text


def test_a_night_whose_fields_are_gone(server: Server, lake: LocalFolder) -> None:
    publish(lake, key())
    ran(None, result={"rows": 3, "errors": 0, "uri": lake.uri})
    answer = server.get(REPORT)
    assert answer.status_code == 404
    assert "num_dag_runs_to_retain_rendered_fields" in answer.text
    assert ">3<" in server.get(NIGHTS).text


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "</title></style></script><img src=x onerror=alert(1)>",
        "\u202egpj.exe",
        "&amp;",
    ],
)
def test_markup_in_documents_is_text(
    server: Server, lake: LocalFolder, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__REPORT_CONTENT", "True")
    failed = [{"ordinal": 0, "reason": text, "id": text, "row": text}]
    given: dict[str, Any] = {
        "failures": [{"step": text, "rows": 1, "reason": text, "examples": failed}],
        "columns": {text: text},
        "arguments": {text: text},
        "uri": text,
        "dead_letter_uri": text,
        "format": text,
    }
    publish(lake, key(), **given)
    made = {
        "schema": [{"name": text, "type": text}],
        "files": [{"path": text, "rows": 1, "bytes": 1}],
        "uri": text,
    }
    lake.write(manifest_file(COMMIT), manifest(key(), **made))
    ran({"destination": lake.uri})
    for page in ("", "/failed", "/dataset"):
        answer = server.get(REPORT + page)
        assert answer.status_code == 200
        assert "<script" not in answer.text
        assert "<img" not in answer.text
        assert "\u202e" not in answer.text


def test_3000_columns_and_long_answers(
    server: Server, lake: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__REPORT_CONTENT", "True")
    columns = {f"column_{number}": "string" for number in range(3000)}
    publish(lake, key(), columns=columns, samples=[{"ordinal": 0, "response": "x" * 10**6}])
    schema = [{"name": name, "type": kind} for name, kind in columns.items()]
    lake.write(manifest_file(COMMIT), manifest(key(), schema=schema))
    ran({"destination": lake.uri})
    assert server.get(REPORT).status_code == 200
    answer = server.get(f"{REPORT}/dataset")
    assert "3,000 columns" in answer.text
    assert "And 2,500 more columns" in answer.text


def test_a_dataset_without_a_report_says_so(server: Server, lake: LocalFolder) -> None:
    publish(lake, key())
    lake.delete([f"{report_folder(COMMIT)}/{REPORT_DATA}"])
    ran({"destination": lake.uri})
    for page in ("", "/failed"):
        assert "The dataset has no report." in server.get(REPORT + page).text
    assert f"{lake.uri}/dead_letter/{COMMIT}" in server.get(f"{REPORT}/failed").text


def test_a_dataset_page_can_be_followed(server: Server, lake: LocalFolder) -> None:
    """Its lines are of the destination that Airflow knows; a document's own paths are text at most."""
    publish(lake, key())
    ran({"destination": lake.uri})
    answer = server.get(f"{REPORT}/dataset").text
    assert "open_dataset(" in answer
    assert f"{lake.uri}/{manifest_file(COMMIT)}" in answer
    assert "read_parquet(" in answer
    assert "elsewhere" not in answer
    assert f"{lake.uri}/dead_letter/{COMMIT}" in server.get(f"{REPORT}/failed").text


def test_no_links_inside_of_a_frame(server: Server, lake: LocalFolder) -> None:
    """A sandboxed frame sends no cookie with them, and may not leave itself."""
    publish(lake, key())
    ran({"destination": lake.uri})
    for path in (REPORT, f"{REPORT}/failed", f"{REPORT}/dataset", NIGHTS):
        framed = server.get(path, **{"Sec-Fetch-Dest": "iframe"}).text
        assert 'href="/' not in framed
        alone = server.get(path).text
        assert 'href="/' in alone
        assert ("Loading" in framed, "Loading" in alone) == (True, False)
    assert 'href="/dags/nightly/runs/night">Run in Airflow' in server.get(REPORT).text


def test_the_run_of_a_dag_of_any_name_is_linked() -> None:
    from airflow_provider_raybatch.plugins.pages import Frame, links  # which needs Airflow's settings

    nav = links(TaskInstance("tasks", "a/b", "tasks", 0), "", Frame())
    assert nav[-1] == ("Run in Airflow", "/dags/tasks/runs/a%2Fb")


@pytest.mark.parametrize("shown", ["done", NotShownError("Too many.", 503), OSError("secret")])
async def test_a_tab_says_at_once_that_it_loads(shown: Any) -> None:
    from airflow_provider_raybatch.plugins import app  # which needs Airflow's settings

    asked = []

    async def make() -> HTMLResponse:
        asked.append(shown)
        if isinstance(shown, Exception):
            raise shown
        return HTMLResponse(render("message.jinja", title="x", sentence=shown))

    parts = app.loading(SimpleNamespace(), make)
    first = await anext(parts)
    assert ("Loading" in first, asked) == (True, [])
    whole = first + "".join([part async for part in parts])
    assert whole.count("<main>") == whole.count("</html>") == 1
    assert ("log of Airflow's" if isinstance(shown, OSError) else str(shown)) in unescape(whole)


def test_a_mapped_task_as_a_whole_has_no_report(server: Server) -> None:
    """Airflow's UI has a tab for it, too."""
    ran(None, task_id="mapped", map_index=0, run_id="mapped_night", day=2)
    answer = server.get("/raybatch/dags/nightly/runs/mapped_night/tasks/mapped/-1")
    assert answer.status_code == 404
    assert "select one of its instances" in answer.text


def test_the_last_nights_of_a_mapped_task(server: Server) -> None:
    for index, rows in enumerate((10, 20)):
        result = {"rows": rows, "errors": 0, "tokens": {"input": 1, "output": 1}}
        ran(None, task_id="mapped", map_index=index, result=result, run_id="mapped_night", day=2)
    ran(None, state="failed", task_id="mapped", map_index=0, run_id="bad_night", day=3)
    answer = server.get("/raybatch/dags/nightly/tasks/mapped").text
    assert ">30<" in answer
    assert answer.index("2026-11-03") < answer.index("2026-11-02")
    assert "/runs/mapped_night/tasks/mapped/1" in answer
