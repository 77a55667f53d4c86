# SPDX-License-Identifier: Apache-2.0
"""The points between two steps at which a process is struck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..plan import MODES

Where = Literal["task", "trigger", "replica", "driver"]
STORES = ("disk", "S3")
SIGNALS = ("KILL", "STOP")
ROWS = 40
BATCH = 8
"""Rows that a replica takes at once."""
ROWS_PER_PART = 10
"""Of the published files."""
ROWS_IN_FLIGHT = 16


@dataclass(frozen=True)
class Point:
    """A point between two steps, and the kinds of strikes there.

    :param where: the process that is struck.
    :param between: the step before and the step after.
    :param modes: the modes in which a task reaches the point.
    :param call: the storage call, see :mod:`sitecustomize`. Points in tasks and triggers have none.
    :param at: the instant of that call.
    :param path: the path of that call, as a regular expression.
    :param nth: which of a process's matching calls, from 1.
    :param by_another: whether another process of the job makes the call.
    :param needs: a point at which an earlier driver is killed first.
    :param reuses: whether the run has a response store.
    :param merges: whether that store has to be merged.
    :param flush_interval: seconds after which the run writes an answer.
    :param freezes: whether another process takes over from one that is frozen there.
    """

    name: str
    where: Where
    between: str
    modes: tuple[str, ...] = MODES
    call: str = ""
    at: str = ""
    path: str = ""
    nth: int = 1
    by_another: bool = False
    needs: str | None = None
    reuses: bool = False
    merges: bool = False
    flush_interval: float = 10.0
    freezes: bool = True

    @property
    def fault(self) -> dict[str, Any] | None:
        """The fault for :mod:`sitecustomize`, if the point is a storage call."""
        if not self.call:
            return None
        return {
            "point": self.name,
            "call": self.call,
            "at": self.at,
            "path": self.path,
            "nth": self.nth,
            "driver": self.by_another,
        }


_DEFERRABLE = ("deferrable",)
_JOURNAL = r"^_raybatch/journal/"
_PART = r"^_raybatch/parts/.*\.parquet$"
_PART_WITH_ALL = rf"^_raybatch/parts/.*\.{ROWS}\.{ROWS}\.parquet$"

POINTS = {
    point.name: point
    for point in (
        Point("token_stored", "task", "the run token is stored | the job's request is built"),
        Point("not_posted", "task", "the request is built and uploaded | it is posted"),
        Point("posted", "task", "the job is posted | the answer is read"),
        Point("before_defer", "task", "the job is known | the task defers", _DEFERRABLE),
        Point("inside_defer", "task", "the deferral is raised | it is sent to Airflow", _DEFERRABLE),
        Point("deferred", "task", "Airflow has the deferral | the worker ends", _DEFERRABLE),
        Point("before_yield", "trigger", "the last poll ended | the trigger yields its event", _DEFERRABLE),
        Point("after_yield", "trigger", "the event is yielded | it is stored", _DEFERRABLE),
        Point("resumed", "task", "the task resumes | execute_complete begins", _DEFERRABLE),
        Point("handed_over", "task", "the result is made | it is recorded"),
        Point("recorded", "task", "the result is recorded | the operator returns"),
        Point("post_execute", "task", "post_execute ran | the XCom is set"),
        Point("xcom_set", "task", "the XCom is set | the success is sent"),
        Point("succeeded", "task", "Airflow has the success | the worker ends"),
        Point(
            "before_claim", "driver", "preflight is over | the claim is entered",
            call="put", at="naming", path=_JOURNAL,
        ),
        Point(
            "claimed", "driver", "the claim is entered | the first row is asked",
            call="put", at="after", path=_JOURNAL,
        ),
        Point(
            "part_rename", "replica", "the third part is written | it gets its name",
            call="put", at="naming", path=_PART, nth=3, flush_interval=0.05, freezes=False,
        ),
        Point(
            "last_part", "replica", "the last part is written | the driver gets its report",
            call="put", at="after", path=_PART_WITH_ALL, freezes=False,
        ),
        Point(
            "publishing", "driver", "some files are published | the third one gets its name",
            call="put", at="naming", path=r"^data/.*part-00002\.", by_another=True,
        ),
        Point(
            "manifest_named", "driver", "the manifest is there | it is entered in the journal",
            call="put", at="after", path=r"^manifests/",
        ),
        Point(
            "journalled", "driver", "the commit is entered | manifest.json is renewed",
            call="put", at="after", path=_JOURNAL, nth=2,
        ),
        Point(
            "copied", "driver", "manifest.json is renewed | the driver reports the commit",
            call="put", at="after", path=r"^manifest\.json$",
        ),
        Point(
            "reported", "driver", "the driver has reported it | left-overs are listed",
            call="list", at="before", path="^data$",
        ),
        Point(
            "leftover", "driver", "one left-over is deleted | the next one is",
            call="delete", at="before", path=r"^(data|dead_letter|manifests)/", nth=2, needs="manifest_named",
        ),
        Point(
            "store_data", "driver", "the store has the responses | it has their keys",
            call="put", at="after", path=r"^v1/data/.*\.parquet$", reuses=True,
        ),
        Point(
            "store_index", "driver", "the store has the keys | it has the mark",
            call="put", at="after", path=r"^v1/index/(?!merged)", reuses=True,
        ),
        Point(
            "store_mark", "driver", "the store has the mark | it is merged",
            call="put", at="after", path=r"^v1/data/.*/_whole$", reuses=True, merges=True,
        ),
        Point(
            "store_merge", "driver", "the merged keys are there | the old ones are deleted",
            call="put", at="after", path=r"^v1/index/merged-", reuses=True, merges=True,
        ),
        Point(
            "store_deletion", "driver", "two old files of keys are deleted | the others are",
            call="delete", at="before", path=r"^v1/index/", nth=3, reuses=True, merges=True,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Aim:
    """A run that is struck at one point, or at several one after another.

    :param points: in the order in which an undisturbed run reaches them; a strike may change it.
    :param signal: for the last point; at those before it, processes are killed.
    """

    points: tuple[str, ...]
    mode: str
    store: str
    signal: str = "KILL"

    @property
    def signals(self) -> dict[str, str]:
        """The signal of the process at each point."""
        return {**dict.fromkeys(self.points[:-1], "KILL"), self.points[-1]: self.signal}

    @property
    def found(self) -> list[Point]:
        return [POINTS[name] for name in self.points]

    def __str__(self) -> str:
        return f"SIG{self.signal} at {' + '.join(self.points)}, {self.mode}, {self.store}"


def table() -> list[Aim]:
    """Return every point in every mode and on every store, with each useful signal."""
    aims = []
    for point in POINTS.values():
        before = () if point.needs is None else (point.needs,)
        for signal in SIGNALS if point.freezes else SIGNALS[:1]:
            for mode in point.modes:
                aims += [Aim((*before, point.name), mode, store, signal) for store in STORES]
    return aims
