# SPDX-License-Identifier: Apache-2.0
"""What the plugin's pages show, of the data that it read: a task instance and its nights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from airflow_provider_raybatch.contract.layout import DATA, DEAD_LETTER, manifest_file
from airflow_provider_raybatch.contract.text import cut_to
from airflow_provider_raybatch.links.report import PREFIX, base_path, report_path, task_path
from airflow_provider_raybatch.plugins.finding import MOST_LISTED
from airflow_provider_raybatch.plugins.nights import Night
from airflow_provider_raybatch.plugins.reading import TaskInstance
from airflow_provider_raybatch.plugins.task_report import TaskReport
from airflow_provider_raybatch.report.comparison import figures
from airflow_provider_raybatch.report.page import Shown, quality, report_body
from airflow_provider_raybatch.report.plots import Plot, line_plot
from airflow_provider_raybatch.report.rendering import render

PAGES = {"": "Report", "failed": "Failed rows", "dataset": "Dataset"}
"""Of a task instance, by the end of their paths."""
_UNDER_WAY = frozenset({
    "running",
    "deferred",
    "queued",
    "scheduled",
    "up_for_retry",
    "up_for_reschedule",
    "restarting",
})
_LONGEST_PATH = 2000
_MOST_MAPPED = 10
"""Instances of a mapped task that a night links to."""


@dataclass(frozen=True)
class Frame:
    """How a page is opened.

    :param framed: whether inside of a frame, as Airflow's own tabs show it. No link of a sandboxed frame may
        leave it, and a page that it leads to gets no login, so there are no links then.
    """

    framed: bool = False

    def href(self, path: str) -> str | None:
        """The address of a path of this Airflow; ``None`` where there are no links."""
        return None if self.framed else f"{base_path()}{path}"


def message_page(title: str, sentence: str) -> str:
    """A page with one sentence."""
    return render("message.jinja", title=title, sentence=sentence)


def report_page(of_task: TaskReport, frame: Frame) -> str:
    """The report, made anew from the data: a stored page has what a writer of the destination put into it."""
    if of_task.report is None:
        return _page("report_of_task.jinja", of_task, "", frame, nothing="The dataset has no report.")
    return _page("report_of_task.jinja", of_task, "", frame, **report_body(of_task.report))


def failed_rows_page(of_task: TaskReport, frame: Frame) -> str:
    """Which rows failed, why, and where they are."""
    report = of_task.report
    if report is None and of_task.found.manifest is None:
        return _page("failed_rows.jinja", of_task, "failed", frame, nothing="There is nothing to show.")
    counted = None if report is None else quality(report, figures(report))
    shown = {"report": report, "quality": counted, **_where(of_task)}
    return _page("failed_rows.jinja", of_task, "failed", frame, **shown)


def dataset_page(of_task: TaskReport, frame: Frame) -> str:
    """The dataset: columns, files, and how to open it."""
    found = of_task.found.manifest
    if found is None:
        nothing = "This run of the task has published no dataset."
        return _page("dataset.jinja", of_task, "dataset", frame, nothing=nothing)
    size = found.bytes
    shown = {
        "manifest": found.content,
        "files": found.files,
        "size": f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size:,} byte{'s' * (size != 1)}",
        "most": MOST_LISTED,
        "opening": [*_opening(of_task), "table = dataset.to_arrow()"],
        **_by_other_readers(of_task, found.content.format == "parquet"),
    }
    return _page("dataset.jinja", of_task, "dataset", frame, **shown)


def _page(
    template: str, of_task: TaskReport, current: str, frame: Frame, nothing: str | None = None, **shown: Any
) -> str:
    """A page about one task instance.

    :param current: one of :data:`PAGES`.
    :param nothing: why there is nothing to show, unless `of_task` says why.
    """
    ti = of_task.ti
    given = {
        "title": f"{ti.task_id}: {PAGES[current].lower()} of {ti.run_id}",
        "heading": PAGES[current],
        "of_task": of_task,
        "links": links(ti, current, frame),
        "log": frame.href(airflow_path(ti)),
        "is_under_way": of_task.state in _UNDER_WAY,
        "nothing": nothing and str(of_task.refusal or nothing),
    }
    return render(template, **given, **shown)


def links(ti: TaskInstance, current: str, frame: Frame) -> Sequence[tuple[str, str]]:
    """Titles and addresses of the other pages of a task instance."""
    ids, in_airflow = (ti.dag_id, ti.run_id, ti.task_id, ti.map_index), airflow_path(ti)
    paths = {
        **{title: PREFIX + report_path(*ids, name) for name, title in PAGES.items() if name != current},
        "Last nights": PREFIX + task_path(ti.dag_id, ti.task_id),
        "Task in Airflow": in_airflow,
        "Run in Airflow": "/".join(in_airflow.split("/")[:5]),
    }
    return [(title, href) for title, path in paths.items() if (href := frame.href(path)) is not None]


def airflow_path(ti: TaskInstance) -> str:
    """Of the task instance in Airflow's UI, where its log is."""
    dag, run, task = (quote(one, safe="") for one in (ti.dag_id, ti.run_id, ti.task_id))
    mapped = "" if ti.map_index < 0 else f"/mapped/{ti.map_index}"
    return f"/dags/{dag}/runs/{run}/tasks/{task}{mapped}"


def _where(of_task: TaskReport) -> Shown:
    """The folder of failed rows, and lines of Python that open it; or a sentence on why there is none."""
    report, manifest = of_task.report, of_task.found.manifest
    if report is not None and report.state != "committed":
        # The folder of a job without a dataset is named in its report alone; it is shown as text.
        folder = report.dead_letter_uri or ""
        is_here = folder.startswith(f"{of_task.destination}/{DEAD_LETTER}/")
        nowhere = "The job published no dataset, and has left no file of its failed rows."
        return {
            "folder": cut_to(folder, _LONGEST_PATH) if is_here else None,
            "lines": None,
            "nowhere": nowhere,
        }
    if manifest is None or not manifest.content.counts.error:
        return {"folder": None, "lines": None, "nowhere": "No row of the dataset failed."}
    lines = [*_opening(of_task), "failed = dataset.dead_letters()"]
    return {"folder": f"{of_task.destination}/{DEAD_LETTER}/{of_task.found.commit}", "lines": lines}


def _opening(of_task: TaskReport) -> Sequence[str]:
    """Lines of Python that open the dataset; of places that Airflow knows, none of a document's."""
    place = f"{of_task.destination}/{manifest_file(of_task.found.commit or '')}"
    login = f", aws_conn_id={of_task.aws_conn_id!r}" if of_task.aws_conn_id else ""
    return [
        "from airflow_provider_raybatch.dataset import open_dataset",
        f"dataset = open_dataset({place!r}{login})",
    ]


def _by_other_readers(of_task: TaskReport, is_parquet: bool) -> Shown:
    folder = f"{of_task.destination}/{DATA}/{of_task.found.commit}"
    extension, reader = ("parquet", "read_parquet") if is_parquet else ("jsonl", "read_json")
    pattern = f"{folder}/**/*.{extension}".replace("'", "''")
    return {
        "pyarrow": [
            "import pyarrow.dataset",
            f"dataset = pyarrow.dataset.dataset({folder!r}, format={'parquet' if is_parquet else 'json'!r})",
            "table = dataset.to_table()",
        ],
        "duckdb": [
            "import duckdb",
            f"rows = duckdb.sql({f'''SELECT * FROM {reader}('{pattern}')'''!r})",
            "rows.show()",
        ],
    }


def nights_page(dag_id: str, task_id: str, nights: Sequence[Night], frame: Frame) -> str:
    """The last nights of a task as plots and as a table.

    :param nights: newest first.
    """
    return render(
        "nights.jinja",
        title=f"{task_id}: last nights",
        dag_id=dag_id,
        task_id=task_id,
        framed=frame.framed,
        nights=[_night(night, frame) for night in nights],
        course=_plots(nights),
    )


def _night(night: Night, frame: Frame) -> Shown:
    places = [
        (
            one.ti.map_index,
            frame.href(PREFIX + report_path(one.ti.dag_id, one.ti.run_id, one.ti.task_id, one.ti.map_index)),
        )
        for one in night.instances[:_MOST_MAPPED]
    ]
    when = night.at.strftime("%Y-%m-%d %H:%M") if night.at is not None else night.run_id
    return {"night": night, "when": when, "places": places, "left": len(night.instances) - _MOST_MAPPED}


def _plots(nights: Sequence[Night]) -> list[Plot]:
    currencies = {night.numbers.currency for night in nights if night.numbers.cost}
    wanted: list[tuple[str, str, Callable[[Night], float | None]]] = [
        ("Good rows", "rows", lambda night: night.numbers.rows),
        ("Failed rows", "rows", lambda night: night.numbers.errors),
        ("Tokens paid", "input and output", lambda night: night.numbers.tokens_paid),
        ("Time", "s", lambda night: night.seconds),
    ]
    if len(currencies) == 1:
        unit = next(iter(currencies)) or "in the unit of its price"
        wanted.append(("Cost", unit, lambda night: night.numbers.cost))
    return [plot for title, unit, value in wanted if (plot := _plot(title, unit, value, nights)) is not None]


def _plot(
    title: str, unit: str, value: Callable[[Night], float | None], nights: Sequence[Night]
) -> Plot | None:
    """A number over the nights; ``None`` where fewer than two have it."""
    timed = [(night.at, value(night)) for night in nights if night.at is not None]
    timed.sort(key=lambda one: one[0])
    if sum(number is not None for _, number in timed) < 2:
        return None
    points = [((at - timed[0][0]).total_seconds(), number) for at, number in timed]
    return line_plot(title, unit, points, whole=unit == "rows")
