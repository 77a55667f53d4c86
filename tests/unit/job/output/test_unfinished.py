# SPDX-License-Identifier: Apache-2.0
"""Reports of runs without a dataset: of failed jobs, of killed ones, and of those that were refused."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_raybatch.contract.events import Notice, Progress
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.layout import task_folder
from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.contract.submission import new_run_token
from airflow_provider_raybatch.job.monitor.start_up import StartUp
from airflow_provider_raybatch.job.output import report as reports
from airflow_provider_raybatch.job.output import run_reports, tally
from airflow_provider_raybatch.job.output.record import Recorder, Series, new_record
from airflow_provider_raybatch.job.output.unfinished import Known, report_of_run
from airflow_provider_raybatch.job.phases import generating, publishing
from airflow_provider_raybatch.report.rendering import environment
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.publishing import failure, part, publish_rows, response
from tests.support.services import services_of
from tests.support.specs import TASK, submitted
from tests.support.whole_job import attempt, dying_attempt, numbered, without_cluster

SUBMISSION = submitted().submission
PLACE = task_folder(SUBMISSION)


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cluster(monkeypatch)


def stored(folder: Folder) -> Report:
    assert folder.head(f"{PLACE}/report.html") is not None
    return Report.model_validate_json(folder.read(f"{PLACE}/report.json"))


def killed(folder: Folder, number: int = 0, ago: float = 600, **fields: object) -> None:
    """Leave what a job leaves that was killed with seven good rows and three failed ones of twenty."""
    rows = [{"text": f"t{n}"} for n in range(10)]
    part(folder, rows, [failure() if n % 4 == 1 else response() for n in range(10)], run=f"{PLACE}/q-l")
    now = time.time() - ago
    record = JobRecord(
        run_token="token",
        submission_id=f"raybatch-x-{number}",
        began=now - 60,
        at=now,
        total=20,
        done=8,
        input_tokens=30,
        output_tokens=10,
        gpu_seconds_by_type={"H100": 50.0},
        **fields,
    )
    folder.write(f"{PLACE}/q-l/raybatch-x-{number}/record.json", record.model_dump_json().encode())


def test_a_killed_job_is_reported_by_who_looks_next(folder: Folder) -> None:
    killed(folder, gpu_hour_price={"*": 3.6}, currency="EUR")
    report = report_of_run(folder, SUBMISSION.task)
    assert report is not None
    assert (report.cost, report.currency, report.gpu_hour_price) == (0.05, "EUR", {"H100": 3.6})
    assert (report.state, report.failure, report.attempts) == ("ended", None, 1)
    assert (report.rows, report.errors, report.total, report.tokens_paid) == (7, 3, 20, 40)
    assert (report.seconds, report.gpu_seconds_by_type) == (60.0, {"H100": 50.0})
    (group,) = report.failures
    assert (group.step, group.rows, [one.ordinal for one in group.examples]) == ("engine", 3, [1, 5, 9])
    assert group.examples[0].row == '{"text": "t1"}'
    assert report.task == SUBMISSION.task


def test_attempts_of_a_run_are_added_up(disk: LocalFolder) -> None:
    killed(disk, 0, ago=900)
    killed(disk, 1)
    report = report_of_run(disk, SUBMISSION.task)
    assert report is not None
    assert (report.attempts, report.tokens_paid, report.gpu_seconds) == (2, 80, 100.0)


@pytest.mark.parametrize("known", [None, Known(submitted(1, report_samples=0))], ids=["the job", "its retry"])
def test_no_content_where_a_job_wants_none(disk: LocalFolder, known: Known | None) -> None:
    killed(disk, content=known is not None)
    retry = None if known is None else f"{PLACE}/q-l/raybatch-x-1"
    report = report_of_run(disk, SUBMISSION.task, part_folder=retry, known=known)
    assert report is not None
    assert (report.content, report.failures[0].examples) == (False, [])


def test_a_job_that_may_run_has_no_report_yet(disk: LocalFolder) -> None:
    killed(disk, ago=10)
    assert report_of_run(disk, SUBMISSION.task) is None
    killed(disk, ago=310)
    assert report_of_run(disk, SUBMISSION.task) is not None


def test_a_run_with_a_dataset_has_no_other_report(disk: LocalFolder) -> None:
    killed(disk)
    publish_rows(disk, [{"text": "t"}])
    assert report_of_run(disk, SUBMISSION.task) is None
    assert report_of_run(LocalFolder(f"{disk.uri}-other"), SUBMISSION.task) is None


def test_a_report_is_made_without_ray(disk: LocalFolder) -> None:
    """The command line runs where Ray may be missing."""
    killed(disk)
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from airflow_provider_raybatch.job.output.unfinished import report_of_run\n"
        "from airflow_provider_raybatch.contract.submission import TaskKey\n"
        "from airflow_provider_raybatch.storage.folder import folder\n"
        f"task = TaskKey.model_validate_json({SUBMISSION.task.model_dump_json()!r})\n"
        f"print(report_of_run(folder({disk.uri!r}), task).rows)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "7"


def test_a_failed_job_reports_itself_and_a_commit_drops_that(disk: LocalFolder, tmp_path: Path) -> None:
    source = numbered(tmp_path / "in.jsonl", 7)
    said = dying_attempt(disk, 0, source)
    report = stored(disk)
    assert (report.state, report.failure, report.failure_class) == ("failed", said, FailureClass.INTERNAL)
    assert (report.rows, report.total, report.attempts) == (7, 7, 1)
    assert report.arguments["prompt"] == "Say {row.id}"
    assert "rows_in_engine" in report.plan
    assert [one.request for one in report.samples] == [f"Say {number}" for number in range(7)]
    summary = attempt(disk, 1, source)
    assert disk.head(f"{PLACE}/report.json") is None
    committed = Report.model_validate_json(disk.read("report.json"))
    assert (committed.attempts, committed.rows, committed.uri) == (2, 7, summary.uri)
    assert disk.read("report.html") == disk.read(str(summary.report_uri).removeprefix(f"{disk.uri}/"))


def test_a_refused_job_is_reported_where_its_destination_is(folder: Folder, tmp_path: Path) -> None:
    source = numbered(tmp_path / "in.jsonl", 3)
    with pytest.raises(RaybatchError) as caught:
        attempt(folder, 0, source, prompt="Say {row.missing}")
    report = stored(folder)
    assert (report.state, report.failure, report.rows) == ("failed", str(caught.value), 0)
    assert report.failure_class is FailureClass.USER_ERROR


def test_a_job_that_finds_the_money_spent_tells_the_cost(disk: LocalFolder, tmp_path: Path) -> None:
    killed(disk, gpu_hour_price={"*": 3.6}, currency="EUR")
    prices = {"gpu_hour_price": {"*": 3.6}, "currency": "EUR", "max_cost": 0.05}
    with pytest.raises(RaybatchError, match=r"max_cost: 0\.050? EUR is spent"):
        attempt(disk, 1, numbered(tmp_path / "in.jsonl", 3), **prices)
    report = stored(disk)
    assert (report.state, report.cost, report.currency, report.attempts) == ("failed", 0.05, "EUR", 2)


def test_a_job_counts_what_an_older_one_notes_at_its_end(
    disk: LocalFolder, tmp_path: Path, monkeypatch
) -> None:
    """It may go on until it finds out that the destination is another's."""
    generate = generating.generate

    def and_the_other_ends(*given):
        killed(disk)
        return generate(*given)

    monkeypatch.setattr(generating, "generate", and_the_other_ends)
    summary = attempt(disk, 1, numbered(tmp_path / "in.jsonl", 3), gpu_hour_price={"*": 3.6})
    assert (summary.gpu_seconds, summary.cost) == (50.0, 0.05)


def test_a_refused_job_leaves_the_folder_of_another_task_alone(disk: LocalFolder, tmp_path: Path) -> None:
    source = numbered(tmp_path / "in.jsonl", 3)
    attempt(disk, 0, source)
    before = disk.list()
    other = submitted(token="other", task={**TASK, "task_id": "other"}).submission
    with pytest.raises(RaybatchError, match="belongs to"):
        attempt(disk, 0, source, submission=other.model_dump())
    assert disk.list() == before


def test_a_job_sees_the_killed_one_before_it(disk: LocalFolder, tmp_path: Path, monkeypatch) -> None:
    source = numbered(tmp_path / "in.jsonl", 3)
    killed(disk)
    seen = []
    publish = publishing.publish_rows

    def look(services, *given):
        services.reports._earlier.join()
        seen.append(stored(disk))
        return publish(services, *given)

    monkeypatch.setattr(publishing, "publish_rows", look)
    attempt(disk, 1, source)
    assert [(one.state, one.attempts, one.rows) for one in seen] == [("ended", 1, 7)]


def test_a_report_that_fails_costs_a_warning(disk: LocalFolder, tmp_path: Path, monkeypatch) -> None:
    source, emitted = numbered(tmp_path / "in.jsonl", 3), []
    monkeypatch.setattr(reports, "report_page", lambda _: 1 / 0)
    summary = attempt(disk, 0, source, emitted)
    assert summary.report_uri is None
    warnings = [one.message for one in emitted if isinstance(one, Notice) and one.level == "warning"]
    assert warnings == ["the report of this job is not written whole: division by zero"]
    assert not [entry.path for entry in disk.list() if "report" in entry.path and "html" in entry.path]


def test_a_node_without_jinja2_writes_no_page(disk: LocalFolder, tmp_path: Path, monkeypatch) -> None:
    """What Airflow makes its page of is there."""
    source, emitted = numbered(tmp_path / "in.jsonl", 3), []
    monkeypatch.setitem(sys.modules, "jinja2", None)
    environment.cache_clear()
    summary = attempt(disk, 0, source, emitted)
    assert (summary.rows, summary.report_uri) == (3, None)
    assert "jinja2" in " ".join(one.message for one in emitted if isinstance(one, Notice))
    assert disk.head("report.json") is not None
    assert disk.head("report.html") is None


def test_a_store_that_refuses_reports_costs_no_dataset(
    disk: LocalFolder, tmp_path: Path, monkeypatch
) -> None:
    source = numbered(tmp_path / "in.jsonl", 3)
    write, delete = LocalFolder.write, LocalFolder.delete

    def refuse(folder, path, content):
        if "report" in path:
            raise StorageError("no room")
        write(folder, path, content)

    def refuse_deletion(folder, paths):
        wanted = list(paths)
        if any("report" in path for path in wanted):
            raise StorageError("no right")
        delete(folder, wanted)

    monkeypatch.setattr(LocalFolder, "write", refuse)
    monkeypatch.setattr(LocalFolder, "delete", refuse_deletion)
    assert attempt(disk, 0, source).report_uri is None
    with pytest.raises(RaybatchError, match="missing"):
        attempt(LocalFolder(f"{disk.uri}2"), 0, source, prompt="Say {row.missing}")


def test_the_last_run_is_one_of_the_same_task(disk: LocalFolder, tmp_path: Path) -> None:
    """Where tasks share a destination, each is compared with its own last dataset, whatever its DAG run."""
    tasks = [{**TASK, "run_id": f"r{n}", "task_id": ("label", "rank")[n % 2]} for n in range(4)]
    told = []
    for number, task in enumerate(tasks):
        source = numbered(tmp_path / f"{number}.jsonl", 3 + number)
        submission = submitted(0, token=f"t{number}", task=task).submission.model_dump()
        summary = attempt(disk, 0, source, submission=submission, on_destination_owned="take_over")
        told.append(None if summary.last_run is None else summary.last_run.rows)
    assert told == [None, None, 3, 4]


def test_a_new_destination_has_its_last_run_from_airflow(disk: LocalFolder, tmp_path: Path) -> None:
    source = numbered(tmp_path / "in.jsonl", 3)
    summary = attempt(disk, 0, source, last_run={"rows": 300, "errors": 2, "cost": 1.5})
    report = Report.model_validate_json(disk.read("report.json"))
    assert report.last_run is not None
    assert (report.last_run.rows, report.last_run.cost, report.last_run.columns) == (300, 1.5, None)
    assert summary.last_run is None


def test_an_overtaken_job_reports_nothing(disk: LocalFolder, tmp_path: Path, monkeypatch) -> None:
    """A driver that survived its cluster fails after a cleared run has published: the report would lie."""
    source, prepare = numbered(tmp_path / "in.jsonl", 3), publishing.prepare
    older, newer = (submitted(n, token=new_run_token(n)).submission.model_dump() for n in (1, 2))

    def overtaken(*_: object) -> None:
        monkeypatch.setattr(publishing, "prepare", prepare)
        attempt(disk, 2, source, submission=newer)
        raise ZeroDivisionError

    monkeypatch.setattr(publishing, "prepare", overtaken)
    with pytest.raises(RaybatchError, match="zero division error"):
        attempt(disk, 1, source, submission=older)
    assert disk.head(f"{PLACE}/report.json") is None


def test_a_slow_look_writes_no_report_after_the_commit(
    disk: LocalFolder, tmp_path: Path, monkeypatch
) -> None:
    killed(disk)
    goes_on, looked = threading.Event(), []

    def slow(*given, **named):
        report = report_of_run(*given, **named)
        looked.append(report)
        goes_on.wait(60)
        return report

    monkeypatch.setattr(run_reports, "report_of_run", slow)
    attempt(disk, 1, numbered(tmp_path / "in.jsonl", 3))
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "raybatch-report":
            thread.join()
    assert looked[0] is not None
    assert disk.head(f"{PLACE}/report.json") is None
    assert Report.model_validate_json(disk.read("report.json")).attempts == 2


def test_replicas_that_are_not_needed_fail_no_job(disk: LocalFolder) -> None:
    """Early ones may have died when all rows turn out to be answered."""

    def dead() -> None:
        raise TimeoutError

    emitted: list[Notice] = []
    launch = SimpleNamespace(began=1.0, at_once=0, reports=dead, end=lambda: None)
    services = services_of(submitted(), emitted.append, launch=launch)
    checked = SimpleNamespace(surveyed=SimpleNamespace(spec=submitted()))
    nothing_left, plan = SimpleNamespace(remaining=0), SimpleNamespace(gpus=1)
    assert generating.generate(services, None, [], checked, nothing_left, plan) is None
    assert emitted[-1].message.startswith("no engine was needed")


def test_what_a_report_needs_fails_no_job(disk: LocalFolder, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Series, "add", lambda *_: 1 / 0)
    monkeypatch.setattr(Series, "moments", property(lambda _: 1 / 0))
    monkeypatch.setattr(tally, "telling", lambda _: 1 / 0)
    monkeypatch.setattr(tally, "lowest", lambda *_: 1 / 0)
    source, emitted = numbered(tmp_path / "in.jsonl", 3), []
    assert attempt(disk, 0, source, emitted).rows == 3
    assert any("the report lacks" in one.message for one in emitted if isinstance(one, Notice))
    recorder = Recorder()
    recorder.begin(disk, f"{PLACE}/q-l/x", new_record(submitted(), SUBMISSION, 0.0, 3), StartUp())
    recorder.observe([], Progress(done=1, total=3), {"H100": 5.0})
    assert recorder.record is not None
    assert recorder.record.gpu_seconds_by_type == {"H100": 5.0}
    recorder.end()
