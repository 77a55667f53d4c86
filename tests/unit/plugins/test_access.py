# SPDX-License-Identifier: Apache-2.0
"""Who sees the plugin's pages, asked of Airflow's own API server."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.plugins.web import HEADERS
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.airflow_server import Server, ran
from tests.support.report_files import SECRET, key, publish

REPORT = "/raybatch/dags/nightly/runs/night/tasks/label/-1"
PAGES = (REPORT, f"{REPORT}/failed", f"{REPORT}/dataset", "/raybatch/dags/nightly/tasks/label")
POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@pytest.fixture(autouse=True)
def report(server: Server, lake: LocalFolder) -> None:
    publish(lake, key())
    ran({"destination": lake.uri})


@pytest.mark.parametrize("path", PAGES)
def test_a_reader_of_xcoms_by_token_and_cookie(server: Server, path: str) -> None:
    assert server.get(path, "viewer").status_code == 200
    assert server.by_cookie(path, "viewer").status_code == 200


def test_a_tab_of_a_task_that_is_not_mapped(server: Server) -> None:
    """The path as Airflow's UI asks for it."""
    for page in ("", "/failed", "/dataset"):
        tab = REPORT.replace("-1", "%7BMAP_INDEX%7D") + page
        assert server.get(tab, "viewer").text == server.get(REPORT + page, "viewer").text
        assert server.get(tab, "guest").status_code == 403


@pytest.mark.parametrize("path", PAGES)
def test_anonymous_is_refused(server: Server, path: str) -> None:
    answer = server.get(path, None)
    assert answer.status_code == 401
    assert "not logged in" in answer.text
    assert server.get(path, None, Authorization="Bearer nonsense").status_code in {401, 403}
    assert server.get(path, None, Cookie="_token=nonsense").status_code in {401, 403}


@pytest.mark.parametrize("path", PAGES)
def test_a_user_without_the_dag_is_refused(server: Server, path: str) -> None:
    for answer in (server.get(path, "guest"), server.by_cookie(path, "guest")):
        assert answer.status_code == 403
        assert "the XComs of this DAG" in answer.text
        assert "0123abcd" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/raybatch/dags/nightly/runs/none/tasks/label/-1",
        "/raybatch/dags/nightly/runs/night/tasks/none/-1",
        "/raybatch/dags/nightly/runs/night/tasks/label/no-number",
        "/raybatch/dags/none/runs/night/tasks/label/-1",
        "/raybatch/dags/none/tasks/label",
    ],
)
def test_a_refused_user_learns_of_nothing(server: Server, path: str) -> None:
    """What exists and what does not gets the same answer."""
    assert server.get(path, "guest").text == server.get(REPORT, "guest").text
    assert server.get(path, "guest").status_code == 403
    if "dags/none/tasks" not in path:
        assert server.get(path, "viewer").status_code == 404


def test_a_query_names_no_other_dag(server: Server) -> None:
    ran({"destination": "/elsewhere"}, dag_id="other")
    assert server.get(f"{REPORT}?dag_id=other", "guest").status_code == 403
    other = "/raybatch/dags/other/runs/night/tasks/label/-1?dag_id=nightly&run_id=night"
    assert server.get(other, "guest").status_code == 404


@pytest.mark.parametrize("name", ["~", "%7E", "..", "%2E%2E", ".", "a%2Fb"])
def test_wildcards_and_steps_in_paths(server: Server, name: str) -> None:
    """Airflow reads ``~`` as all DAGs or all runs."""
    for path in (
        f"/raybatch/dags/{name}/runs/night/tasks/label/-1",
        f"/raybatch/dags/nightly/runs/{name}/tasks/label/-1",
        f"/raybatch/dags/nightly/runs/night/tasks/{name}/-1",
        f"/raybatch/dags/{name}/tasks/label",
        f"/raybatch/dags/nightly/tasks/{name}",
    ):
        for user in ("viewer", "guest"):
            answer = server.get(path, user)
            assert answer.status_code in {403, 404}, path
            assert "0123abcd" not in answer.text


@pytest.mark.parametrize("user", ["viewer", "guest", None])
@pytest.mark.parametrize("path", [*PAGES, "/raybatch/none", "/raybatch/dags/nightly/runs/none/tasks/label/1"])
def test_each_answer_is_sandboxed(server: Server, path: str, user: str | None) -> None:
    answer = server.get(path, user)
    assert HEADERS["Content-Security-Policy"] == POLICY
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    "path", ["/raybatch/docs", "/raybatch/openapi.json", "/raybatch/redoc", "/raybatch/"]
)
def test_anonymous_finds_no_description(server: Server, path: str) -> None:
    assert server.get(path, None).status_code == 404


def test_nothing_is_changed_by_a_page(server: Server) -> None:
    assert server.post(REPORT, "admin").status_code == 405


def test_content_of_rows_is_shown_by_choice(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "&lt;b&gt;the content of a row&lt;/b&gt;"
    for path in PAGES:
        answer = server.get(path, "admin").text
        assert SECRET not in answer
        assert shown not in answer
    assert "the prompt is empty" in server.get(REPORT).text
    assert "report_content is off" in server.get(REPORT).text
    monkeypatch.setenv("AIRFLOW__RAYBATCH__REPORT_CONTENT", "True")
    answer = server.get(REPORT).text
    assert shown in answer
    assert SECRET not in answer
    monkeypatch.setenv("AIRFLOW__RAYBATCH__REPORT_CONTENT", "perhaps")
    assert shown not in server.get(REPORT).text


def test_no_local_folder_is_read_by_default(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__RAYBATCH__REPORT_ROOTS")
    answer = server.get(REPORT)
    assert answer.status_code == 404
    assert "[raybatch] report_roots" in answer.text
