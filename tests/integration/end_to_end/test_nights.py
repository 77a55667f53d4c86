# SPDX-License-Identifier: Apache-2.0
"""Two nights in a real Airflow, as people see them in a browser: links, reports, money, and who sees nothing.

With ``RAYBATCH_PICTURES=FOLDER`` the pictures of the documentation are written there (``make pictures``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider_raybatch.report import words
from tests.support.browser import Chromium, Visitor, browser

from .lake import Lake
from .nights import DAG, LONG, NIGHTS, PRICE, ROWS, TASKS, TYPE, UNREADABLE, connect, gpus, play
from .rest import AirflowApi, Run
from .stack import AirflowStack

__all__ = ["browser"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FIRST, SECOND = NIGHTS
FAILED = LONG + UNREADABLE
PAGES = ("", "/failed", "/dataset")
LARGEST_PICTURE = 150_000
Open = Callable[[str], Any]


@pytest.fixture(scope="module")
def nights(airflow: AirflowStack, api: AirflowApi, lake: Lake) -> Iterator[dict[str, Run]]:
    airflow.show_dags({})
    with gpus() as ray:
        connect(api, lake, ray)
        yield {night: play(api, night) for night in NIGHTS}


@pytest.fixture
def open_as(browser: Chromium, airflow: AirflowStack) -> Callable[[str], Any]:
    """A browser in which a user has logged in, or none with an empty name."""

    @contextmanager
    def opened(user: str) -> Iterator[Visitor]:
        with browser.visitor(airflow.url) as visitor:
            if user:
                visitor.log_in(user, airflow.passwords[user])
            visitor.scripts.clear()  # of Airflow's own pages
            yield visitor

    return opened


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("RAYBATCH_PICTURES") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def report_path(run: Run, task: str, page: str = "") -> str:
    run_id = run.run_id.replace(":", "%3A").replace("+", "%2B")
    return f"/raybatch/dags/{DAG}/runs/{run_id}/tasks/{task}/-1{page}"


def picture(visitor: Visitor, path: Path, **options: Any) -> None:
    assert visitor.picture(path, **options).stat().st_size <= LARGEST_PICTURE


def test_links_of_a_task_lead_to_its_pages(nights, open_as, pictures):
    run = nights[SECOND]
    with open_as("viewer") as visitor:
        visitor.open(f"/dags/{DAG}/runs/{run.run_id}/tasks/label/details")
        links = {}
        for name, page in zip(("Report", "Failed rows", "Dataset"), PAGES, strict=True):
            link = visitor.page.get_by_role("link", name=name, exact=True)
            link.wait_for()
            links[link.get_attribute("href")] = report_path(run, "label", page)
        visitor.page.wait_for_load_state("networkidle")
        picture(visitor, pictures / "report_links.png")
        visitor.scripts.clear()
        for href, expected in links.items():
            assert visitor.open(href).url.endswith(expected)
        visitor.assert_static()


def test_report_is_a_tab_of_the_task_instance(nights, open_as):
    with open_as("viewer") as visitor:
        visitor.open(f"/dags/{DAG}/runs/{nights[SECOND].run_id}/tasks/label")
        visitor.page.get_by_role("link", name="Batch report").click()
        frame = visitor.page.frame_locator("iframe")
        frame.get_by_text(f"{ROWS - FAILED} good rows").first.wait_for()
        visitor.assert_quiet()


def test_last_nights_are_a_tab_of_the_task(nights, open_as):
    with open_as("viewer") as visitor:
        visitor.open(f"/dags/{DAG}/tasks/label")
        visitor.page.get_by_role("link", name="Batch nights").click()
        visitor.page.frame_locator("iframe").get_by_text(FIRST).first.wait_for()
        visitor.assert_quiet()


def test_page_has_rows_reasons_and_no_content(nights, open_as):
    with open_as("viewer") as visitor:
        answer = visitor.open(report_path(nights[SECOND], "label"))
        shown = visitor.page.inner_text("body")
        visitor.assert_static()
    assert answer.status == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox; default-src 'none'" in answer.headers["content-security-policy"]
    assert f"{ROWS - FAILED} good rows" in shown
    assert "leaves no room for a response" in shown
    assert "kettle" not in shown
    assert "reviews')" not in shown


def test_money_on_the_page_is_the_manifests(nights, open_as, lake):
    result = nights[SECOND].task("label").xcom()
    manifest = lake.document(result["manifest_uri"])
    assert manifest["gpu_hour_price"] == {TYPE: PRICE}
    held = manifest["gpu_seconds_by_type"]
    assert held.keys() == {TYPE}
    assert manifest["cost"] == pytest.approx(held[TYPE] * PRICE / 3600)
    assert manifest["cost"] == result["cost"] > 0
    with open_as("viewer") as visitor:
        visitor.open(report_path(nights[SECOND], "label"))
        assert words.money(manifest["cost"], "USD") in visitor.page.inner_text("body")


def test_a_task_without_a_dataset_has_a_report(nights, open_as):
    assert nights[SECOND].task("screen").state == "failed"
    with open_as("viewer") as visitor:
        assert visitor.open(report_path(nights[SECOND], "screen")).status == 200
        shown = visitor.page.inner_text("body")
        visitor.assert_static()
    assert "max_errors" in shown


def test_last_nights_of_a_task_are_on_one_page(nights, open_as, pictures):
    with open_as("viewer") as visitor:
        visitor.open(f"/raybatch/dags/{DAG}/tasks/label")
        shown = visitor.page.inner_text("body")
        visitor.assert_static()
        picture(visitor, pictures / "report_nights.png", full_page=True)
        for run in nights.values():
            assert visitor.page.locator(f"a[href$='{report_path(run, 'label')}']").count() > 0
    assert f"{ROWS - FAILED}" in shown
    assert str(FAILED) in shown


@pytest.mark.parametrize("user", ["", "guest"])
def test_others_see_nothing(nights, open_as, user):
    paths = [report_path(nights[SECOND], task, page) for task in TASKS for page in PAGES]
    with open_as(user) as visitor:
        for path in [*paths, f"/raybatch/dags/{DAG}/tasks/label"]:
            answer = visitor.open(path)
            shown = visitor.page.inner_text("body")
            assert answer.status in {401, 403} or "/auth/login" in visitor.page.url, path
            assert str(ROWS - FAILED) not in shown


def test_a_request_without_a_login_is_refused(nights, airflow):
    answer = httpx.get(airflow.url + report_path(nights[SECOND], "label"))
    assert answer.status_code in {401, 403, 302, 307}
    assert str(ROWS - FAILED) not in answer.text


def test_file_beside_the_manifest_opens_alone(nights, browser, lake, pictures, tmp_path):
    manifest = lake.document(nights[SECOND].task("label").xcom()["manifest_uri"])
    uri = manifest["report_uri"].removeprefix("s3://lake/")
    file = tmp_path / "report.html"
    file.write_bytes(lake.contents(uri)[uri])
    newest = "labels/" + SECOND + "/report.html"
    assert lake.contents(newest)[newest] == file.read_bytes()
    with browser.visitor() as visitor:
        visitor.open_file(file)
        visitor.assert_static()
        assert "kettle" in visitor.page.inner_text("body")
        picture(
            visitor,
            pictures / "report.png",
            clip={"x": 0, "y": 0, "width": 1200, "height": 1400},
            full_page=True,
        )


@pytest.mark.parametrize("task", ["label", "summarize"])
def test_night_before_is_beside_this_one(nights, open_as, task):
    """In a folder for each night, and in one for all."""
    with open_as("viewer") as visitor:
        visitor.open(report_path(nights[SECOND], task))
        assert f"last: {ROWS}" in visitor.page.inner_text("body")
