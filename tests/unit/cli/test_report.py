# SPDX-License-Identifier: Apache-2.0
"""``raybatch report``: which report is meant, and what is shown of it."""

from __future__ import annotations

import json
import time
import webbrowser
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_raybatch.cli.definition import main
from airflow_provider_raybatch.contract.layout import (
    NEWEST_MANIFEST,
    RECORD,
    REPORT_DATA,
    journal_entry,
    report_folder,
    task_place,
)
from airflow_provider_raybatch.contract.report import Report, parse_report
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.contract.text import all_storable
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder, folder
from tests.support import reports
from tests.support.report_files import COMMIT, SECRET, entry, key, leave, manifest, publish
from tests.support.s3_server import serving

OTHER = "20261126T010203-0123abcd"
OLD = {"created_at": "2026-11-26T01:05:00+00:00"}
Show = Callable[..., str]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Show:
    monkeypatch.setenv("COLUMNS", "120")

    def shown(*words: object) -> str:
        main(["report", *map(str, words)])
        return capsys.readouterr().out

    return shown


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Show:
    def said(*words: object) -> str:
        with pytest.raises(SystemExit) as caught:
            main(["report", *map(str, words)])
        assert caught.value.code == 1
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message

    return said


@pytest.fixture
def place(tmp_path: Path) -> Folder:
    """A destination with a dataset."""
    made = LocalFolder(str(tmp_path / "out"))
    commit(made)
    return made


def claim(place: Folder, number: int, run_id: str, ago: float = 600) -> None:
    """Leave what a killed job leaves."""
    owner, at = key(run_id=run_id), time.time() - ago
    place.write(
        journal_entry(number),
        entry(number, owner, kind="claim", at=datetime.fromtimestamp(at, UTC).isoformat()),
    )
    record = JobRecord(run_token="1", submission_id="job-1", began=at - 60, at=at, total=4, input_tokens=9)
    place.write(f"{task_place(owner)}/q-l/job-1~0/{RECORD}", record.model_dump_json().encode())


def written(report: Report) -> str:
    """The document of a report."""
    return json.dumps(all_storable(report.model_dump()))


def commit(place: Folder, name: str = COMMIT, **fields: object) -> None:
    """Publish the newest dataset with its report."""
    publish(place, key(), commit=name, **fields)
    place.write(NEWEST_MANIFEST, manifest(key(), manifest_uri=f"s3://elsewhere/manifests/{name}.json"))


def test_a_destination_shows_numbers_reasons_and_samples(place: Folder, show: Show) -> None:
    text = show(place.uri)
    assert text.startswith(
        "nightly.label, run night, 2026-11-27 01:05:00 UTC\nThe dataset is complete: 3 good"
    )
    assert "1 row failed at engine: the prompt is empty" in text
    assert "Cost " in text
    assert "1.25 USD" in text
    assert f"answer: {SECRET}" in text


def test_numbers_stand_beside_the_last_ones(tmp_path: Path, show: Show) -> None:
    (tmp_path / REPORT_DATA).write_text(written(reports.good()))
    lines = show(tmp_path / REPORT_DATA).splitlines()
    assert any(line.split() == ["Cost", "1.82", "USD", "1.67", "USD", "+9.2", "%", "worse"] for line in lines)
    assert "  score: int64 -> double" in lines


def test_steps_are_told_apart(tmp_path: Path, show: Show) -> None:
    (tmp_path / REPORT_DATA).write_text(written(reports.in_steps()))
    text = show(tmp_path / REPORT_DATA)
    assert "Step judge: 9,850 asked, 9,850 good, 1,124,330 prompt tokens, 40,000 generated tokens\n" in text
    assert "Answers of judge\n         9,000  good\n" in text
    draft = "draft: prompt: Describe Ann.\n  draft: answer: Ann bakes."
    assert f"Row 3\n  {draft}\n  judge: prompt: Judge Ann bakes.\n  judge: answer: good\n" in text
    bare = json.loads(show(tmp_path / REPORT_DATA, "--without-content", "--json"))
    assert [one["answers"] for one in bare["answers_by_step"]] == [None] * 3


def test_content_is_left_out_where_asked(place: Folder, show: Show) -> None:
    for words in ((), ("--json",), ("--card",), ("--output", "-")):
        assert SECRET not in show(place.uri, "--without-content", *words)


def test_nothing_of_a_report_steers_the_terminal(tmp_path: Path, show: Show) -> None:
    (tmp_path / REPORT_DATA).write_text(written(reports.nasty()))
    for words in ((), ("--json",)):
        assert not set(show(tmp_path / REPORT_DATA, *words)) & set("\x00\x07\x1b\u202e\u2066")


@pytest.mark.parametrize("name", reports.GALLERY)
def test_each_kind_of_report_is_printed(tmp_path: Path, show: Show, name: str) -> None:
    (tmp_path / REPORT_DATA).write_text(written(reports.GALLERY[name]()))
    text = show(tmp_path / REPORT_DATA)
    assert "None" not in text
    assert len(text) < 20_000


def test_json_reads_back(place: Folder, show: Show) -> None:
    assert parse_report(show(place.uri, "--json").encode(), "stdout").cost == 1.25


def test_files_are_written(place: Folder, tmp_path: Path, show: Show) -> None:
    page, card = tmp_path / "page.html", tmp_path / "README.md"
    assert show(place.uri, "--output", page, "--card", card) == ""
    assert page.read_text().startswith("<!doctype html>")
    assert card.read_text().startswith("---\npretty_name: ")


def test_the_page_opens_in_a_browser(place: Folder, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    file = Path(show(place.uri, "--open").strip())
    assert opened == [file.as_uri()]
    assert "The dataset is complete" in file.read_text()
    assert file.parent.stat().st_mode & 0o077 == 0


def test_without_a_browser_the_page_is_named(
    place: Folder, tmp_path: Path, refused: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    page = tmp_path / "page.html"
    assert refused(place.uri, "--open", "--output", page) == (
        f"open: no browser was found here; the page is at {page}.\n"
    )


def test_the_newest_run_counts_also_without_a_dataset(place: Folder, show: Show) -> None:
    leave(place, key(run_id="next"))
    assert "The job failed, and no dataset was published. the engine died" in show(place.uri)
    leave(place, key(run_id="next"), created_at="2026-11-25T00:00:00+00:00")
    assert "The dataset is complete" in show(place.uri)


def test_a_killed_job_is_shown_by_what_it_left(place: Folder, show: Show) -> None:
    claim(place, 2, "lost")
    text = show(place.uri)
    assert "The job ended without saying why, and no dataset was published." in text
    assert any(line.split()[:3] == ["Time", "1", "min"] for line in text.splitlines())
    publish(place, key(run_id="later"), number=3)
    assert "The dataset is complete" in show(place.uri)
    assert "ended without saying why" in show(place.uri, "--run", "lost")


def test_a_job_that_may_still_run_is_not_shown(place: Folder, show: Show) -> None:
    claim(place, 2, "lost", ago=5)
    assert "The dataset is complete" in show(place.uri)


def test_a_run_is_named_by_its_id(place: Folder, show: Show, refused: Show) -> None:
    leave(place, key(run_id="next"))
    assert "The dataset is complete" in show(place.uri, "--run", "night")
    assert "the engine died" in show(place.uri, "--run", "next")
    message = refused(place.uri, "--run", "never")
    assert message.startswith(f"report: there is none of the run 'never' at {place.uri}, nor in a folder")


def test_a_folder_of_runs_shows_the_last(tmp_path: Path, show: Show) -> None:
    for name, cost in (("2026-11-26", 7.0), ("2026-11-27", 8.0)):
        commit(LocalFolder(str(tmp_path / name)), cost=cost)
    (tmp_path / "2026-11-28").mkdir()
    assert "8.00 USD" in show(tmp_path)


def test_uris_of_files_name_a_report(place: Folder, show: Show) -> None:
    for path in (
        f"manifests/{COMMIT}.json",
        NEWEST_MANIFEST,
        f"{report_folder(COMMIT)}/report.json",
        f"{report_folder(COMMIT)}/report.html",
    ):
        assert "1.25 USD" in show(f"{place.uri}/{path}")


def test_a_dataset_without_a_report_is_one_sentence(tmp_path: Path, show: Show, refused: Show) -> None:
    place = LocalFolder(str(tmp_path))
    place.write(NEWEST_MANIFEST, manifest(key()))
    assert "report.json is missing, so the dataset has none; see its job's log." in refused(tmp_path)
    leave(place, key(run_id="next"))
    assert "The job failed, and no dataset was published." in show(tmp_path)


def test_a_report_in_s3_is_read_and_opened(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        server.open_to_this_process(monkeypatch)
        place = folder(f"s3://{server.new_bucket()}/out")
        commit(place)
        leave(place, key(run_id="before"), **OLD)
        assert "1.25 USD" in show(place.uri)
        monkeypatch.setattr(webbrowser, "open", lambda url: True)
        assert "The dataset is complete" in Path(show(place.uri, "--open").strip()).read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "it is not a report"),
        (b'{"rows": 1, "extra": 2}', "it is not a report"),
        (b"\xff", "it is not"),
    ],
)
def test_a_broken_report_is_named(place: Folder, refused: Show, content: bytes, said: str) -> None:
    path = f"{report_folder(COMMIT)}/{REPORT_DATA}"
    place.write(path, content)
    message = refused(place.uri)
    assert message.startswith(f"report: {place.uri}/{path}: {said}")


def test_what_is_no_destination_is_refused(tmp_path: Path, refused: Show) -> None:
    assert refused(tmp_path / "missing").startswith(f"report: there is none at {tmp_path / 'missing'}")
    assert refused(tmp_path / "missing/manifest.json").startswith(
        f"{tmp_path / 'missing/manifest.json'}: can't read"
    )


def test_an_unreachable_bucket_is_one_sentence(refused: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        server.open_to_this_process(monkeypatch)
        message = refused("s3://no-such-bucket-here/out")
    assert message.startswith("s3://no-such-bucket-here/out/")
    assert message.endswith(": can't list it, the bucket does not exist; check its name.\n")
