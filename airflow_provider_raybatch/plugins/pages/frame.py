# SPDX-License-Identifier: Apache-2.0
"""What the pages have in common: links between them, and why there is nothing to show."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote
from xml.etree.ElementTree import Element

from airflow_provider_raybatch.links.report import PREFIX, base_path, report_path, task_path
from airflow_provider_raybatch.plugins.looking import Look
from airflow_provider_raybatch.plugins.task_key import TaskInstance
from airflow_provider_raybatch.report.elements import Content, document, node, words_of

PAGES = {"": "Report", "failed": "Failed rows", "dataset": "Dataset"}
"""By the end of their paths."""
NO_REPORT = "The dataset has no report."
_UNDER_WAY = frozenset({
    "running",
    "deferred",
    "queued",
    "scheduled",
    "up_for_retry",
    "up_for_reschedule",
    "restarting",
})


@dataclass(frozen=True)
class Frame:
    """How a page is opened.

    :param framed: whether inside of a frame, as Airflow's own tabs show it. No link of a sandboxed frame may
        leave it, and a page that it leads to gets no login, so there are no links then.
    """

    framed: bool = False

    def link(self, path: str, *content: Content) -> Content:
        """A link to a path of this Airflow, or its text alone."""
        return list(content) if self.framed else node("a", *content, href=f"{base_path()}{path}")


def message_page(title: str, sentence: str) -> str:
    """A page with one sentence."""
    return document(title, node("h1", title), node("p", words_of(sentence, 2000), class_="state failed"))


def page(look: Look, current: str, frame: Frame, *content: Content) -> str:
    """A page about one task instance.

    :param current: one of :data:`PAGES`.
    """
    ti = look.ti
    return document(
        f"{ti.task_id}: {PAGES[current].lower()} of {ti.run_id}", links(ti, current, frame), content
    )


def links(ti: TaskInstance, current: str, frame: Frame) -> Element | None:
    """Links to the other pages of a task instance."""
    if frame.framed:
        return None
    ids = (ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
    others = [
        frame.link(PREFIX + report_path(*ids, name), title)
        for name, title in PAGES.items()
        if name != current
    ]
    nights = frame.link(PREFIX + task_path(ti.dag_id, ti.task_id), "Last nights")
    task = frame.link(airflow_path(ti), "Task in Airflow")
    run = frame.link("/".join(airflow_path(ti).split("/")[:5]), "Run in Airflow")
    return node("nav", others, nights, task, run, aria_label="Pages")


def airflow_path(ti: TaskInstance) -> str:
    """Of the task instance in Airflow's UI, where its log is."""
    dag, run, task = (quote(one, safe="") for one in (ti.dag_id, ti.run_id, ti.task_id))
    mapped = "" if ti.map_index < 0 else f"/mapped/{ti.map_index}"
    return f"/dags/{dag}/runs/{run}/tasks/{task}{mapped}"


def head(look: Look, title: str) -> Element:
    """The title of a page, and which task instance it is about."""
    ti = look.ti
    mapped = "" if ti.map_index < 0 else f" [{ti.map_index}]"
    about = node("p", "DAG ", words_of(ti.dag_id), ", run ", words_of(ti.run_id), class_="dim")
    return node("header", node("h1", f"{title}: ", words_of(ti.task_id), mapped), about)


def nothing(look: Look, frame: Frame, sentence: str | None = None) -> list[Content]:
    """Why there is nothing, Airflow's state of the task, and where its log is."""
    said = str(look.refusal) if look.refusal is not None else sentence
    return [
        node("p", words_of(said or "There is nothing to show.", 2000), class_="state failed"),
        node("p", *_state(look, frame)),
    ]


def _state(look: Look, frame: Frame) -> list[Content]:
    said: list[Content] = ["In Airflow, the task is ", node("strong", look.state.replace("_", " ")), ". "]
    if look.state in _UNDER_WAY:
        return [
            *said,
            "Its report is written when the job ends; until then ",
            frame.link(airflow_path(look.ti), "the task's log"),
            " says how far it is.",
        ]
    return [*said, "What it did is in ", frame.link(airflow_path(look.ti), "the task's log"), "."]


def notes(look: Look) -> list[Content]:
    """What a reader should know of a report before reading it."""
    found: list[str] = []
    report = look.report
    if look.state in _UNDER_WAY:
        found.append(
            f"The task is {look.state.replace('_', ' ')}: this is the report of an earlier job of this run."
        )
    elif report is not None and report.state != "committed" and look.state == "success":
        found.append("The task has succeeded since: this is the report of its last job without a dataset.")
    if look.hidden:
        found.append(
            "Prompts, answers and rows are not shown inside Airflow ([raybatch] report_content is off); "
            "report.html at the destination has them."
        )
    return [node("p", sentence, class_="dim") for sentence in found]
