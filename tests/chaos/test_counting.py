# SPDX-License-Identifier: Apache-2.0
"""The harness finds all flaws, and counts every run."""

from __future__ import annotations

import io
import json
import os
import subprocess
from dataclasses import asdict, replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.engine_log import Engine, engines

from . import results, table
from .counting import Count, count, generated_by_now, living
from .places import Disk, Part, Parts, phase
from .plan import KINDS, plan
from .result import Result
from .runs import Setting, run
from .stopping import Stop
from .workload import Found, Pace, check, output_of, prompt_of, write_source
from .world import Live, World

VERSION = "0.1-3-gabc"
GOOD = Result(
    seed=1,
    kind="engine",
    mode="blocking",
    store="disk",
    with_family=False,
    version=VERSION,
    instant=3.0,
    phase="generating",
    before=400,
    state="success",
    rows=1000,
    asked=1024,
    generated=1010,
    lost_engines=1,
    in_flight=24,
    tries=1,
    submissions=1,
    seconds=40.0,
    expected=30.0,
)
QUIET = replace(GOOD, asked=1000, generated=1000, lost_engines=0, in_flight=0)
STOP = Stop("cleared", "blocking", VERSION, "STOPPED", False, 8.5, 40)


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path, 100, seed=3)


@pytest.fixture
def output(source):
    return [{**row, **asdict(output_of(row)), "cached_tokens": 0} for row in source.values()]


def test_missing_double_and_foreign_rows(source, output):
    assert check(source, reversed(output)) == Found()
    assert check(source, output[1:]) == Found(lost=1)
    assert check(source, [*output, output[5], output[5]]) == Found(duplicated=2)
    assert check(source, [*output, {**output[0], "id": 100}]) == Found(wrong=1)


@pytest.mark.parametrize("column", ["response", "finish_reason", "output_tokens", "weight", "text"])
def test_another_value_than_the_input_or_its_answer(column, source, output):
    output[7] = {**output[7], column: output[8][column] * 2}
    assert check(source, output) == Found(lost=1, wrong=1)


def log(folder, pid, *lines):
    folder.mkdir(exist_ok=True)
    text = "".join(
        json.dumps({"at": at, "event": event, "submission" if event == "open" else "prompt": what}) + "\n"
        for at, event, what in lines
    )
    (folder / f"a-host-{pid}.jsonl").write_text(text)


def test_requests_of_all_engines_count(tmp_path):
    log(tmp_path, 7, (1.0, "open", "s-0"), (2.0, "start", "x"), (3.0, "start", "y"), (4.0, "end", "x"))
    log(
        tmp_path,
        9,
        (5.0, "open", "s-1"),
        (6.0, "start", "y"),
        (7.0, "end", "y"),
        (7.5, "close", ""),
        (8.0, "open", "s-1"),
    )
    with (tmp_path / "a-host-9.jsonl").open("a") as half:
        half.write('{"at": 9.0, "ev')
    assert engines(tmp_path) == [
        Engine(7, "s-0", 1.0, [("x", 2.0), ("y", 3.0)], [("x", 4.0)]),
        Engine(9, "s-1", 5.0, [("y", 6.0)], [("y", 7.0)]),
        Engine(9, "s-1", 8.0),
    ]
    assert generated_by_now(tmp_path) == 2


def test_living_engines_are_those_whose_process_is(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as alive, subprocess.Popen(["true"]) as dead:
        dead.wait()
        for pid in (alive.pid, dead.pid):
            log(tmp_path, pid, (1.0, "open", "s-0"))
        assert living(tmp_path) == [alive.pid]
        alive.kill()


# Two engines of one submission; 7 is killed at 5.0, when a part has "a" and "b" is in flight.
WITHIN = 1.0
KILLED = Engine(7, "s-0", 1.0, [("a", 2.0), ("b", 3.5)], [("a", 2.5)])
OTHER = Engine(8, "s-0", 1.0, [("c", 2.0), ("b", 6.0)], [("c", 3.0), ("b", 8.0)])
PARTS = (Part(3.0, frozenset("a")), Part(9.0, frozenset("bc")))
SUBMISSIONS = {("s-0", 0.5)}


def counted(*engines, parts=PARTS, lost=None, submissions=SUBMISSIONS):
    return count(engines, parts, {7: 5.0} if lost is None else lost, submissions, set("abc"), WITHIN)


def again(engine, prompt, at):
    return replace(engine, asked=[*engine.asked, (prompt, at)])


@pytest.mark.parametrize(
    ("engines", "lost", "expected"),
    [
        ((KILLED, OTHER), None, {"asked": 4, "generated": 3, "in_flight": 1, "unexplained": 0, "foreign": 0}),
        ((KILLED, OTHER), {}, {"asked": 4, "generated": 3, "in_flight": 0, "unexplained": 1}),
        ((KILLED, again(OTHER, "a", 7.0)), None, {"unexplained": 1}),
        ((KILLED, OTHER, Engine(9, "s-0", 1.0, [("c", 8.0)], [("c", 9.0)])), None, {"unexplained": 1}),
        ((again(KILLED, "c", 5.5), OTHER), None, {"in_flight": 2, "unexplained": 0}),
        ((Engine(9, "s-9", 4.0, [("z", 5.0)], [("z", 6.0)]),), None, {"foreign": 2}),
    ],
    ids=["killed", "no kill", "written before", "two living", "asked after the kill", "foreign"],
)
def test_what_may_be_asked_again(engines, lost, expected):
    assert asdict(counted(*engines, lost=lost)).items() >= expected.items()


@pytest.mark.parametrize(("answered", "overdue"), [(4.5, 0), (3.9, 1)])
def test_an_answer_that_waits_too_long_to_be_written_is_overdue(answered, overdue):
    waiting = replace(KILLED, generated=[*KILLED.generated, ("b", answered)])
    assert counted(waiting, OTHER) == Count(asked=4, generated=4, in_flight=1, overdue=overdue)


@pytest.mark.parametrize(("began", "late"), [(3.5, 1), (2.5, 0)])
def test_later_submission_may_not_ask_what_a_part_answers(began, late):
    newer = Engine(9, "s-1", 4.0, [("a", 7.0)], [("a", 8.0)])
    found = counted(KILLED, OTHER, newer, submissions={*SUBMISSIONS, ("s-1", began)})
    assert (found.late, found.unexplained) == (late, 1)


def test_submission_of_a_new_head_has_an_old_id():
    newer = Engine(9, "s-0", 6.5, [("a", 7.0)], [("a", 8.0)])
    assert counted(KILLED, OTHER, newer, submissions={*SUBMISSIONS, ("s-0", 6.0)}).late == 1


def put(folder, path, content=b"x", at=None):
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def test_phase_is_what_the_folder_holds(tmp_path):
    place = Disk(tmp_path)
    assert phase(place) == "before claim"
    put(tmp_path, "data/abandoned/part-00000.parquet")
    put(tmp_path, "_raybatch/journal/00000001.json", b'{"kind": "claim"}')
    assert phase(place) == "generating"
    put(tmp_path, "data/c/.raybatch-scratch")
    assert phase(place) == "generating"
    put(tmp_path, "data/c/part-00000.parquet")
    assert phase(place) == "publishing"
    put(tmp_path, "_raybatch/journal/00000002.json", b'{"kind": "commit"}')
    assert phase(place) == "after commit"


def test_parts_show_what_they_answer_and_since_when(tmp_path):
    rows = [{"id": 1, "asks": 1, "text": "a"}, {"id": 2, "asks": 2, "text": "b"}]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"ok": [True, False], "input": rows}), buffer)
    path = "_raybatch/parts/t/q/s-0~1/0.0-1.2.1.parquet"
    put(tmp_path, path, buffer.getvalue())
    os.utime(tmp_path / path, (1, 1))  # the name is newer than the content
    (part,) = Parts(Disk(tmp_path)).all()
    assert part.prompts == {prompt_of(rows[0])}
    assert part.appeared > 1e9


@pytest.mark.parametrize(
    ("result", "changes", "flaw"),
    [
        (GOOD, {}, None),
        (QUIET, {}, None),
        (QUIET, {"asked": 1001}, "asked=1001, generated=1000 of 1000"),
        (QUIET, {"asked": 1001, "generated": 1001}, "asked=1001, generated=1001 of 1000"),
        (GOOD, {"asked": 1025}, "asked=1025, generated=1010 of 1000+24"),
        (GOOD, {"generated": 999}, "asked=1024, generated=999 of 1000+24"),
        (GOOD, {"overdue": 3}, "overdue=3"),
        (GOOD, {"unexplained": 1}, "unexplained=1"),
        (GOOD, {"late": 1}, "late=1"),
        (GOOD, {"foreign": 1}, "foreign=1"),
        (GOOD, {"lost": 2}, "lost=2"),
        (GOOD, {"state": "failed"}, "state=failed"),
        (QUIET, {"missed": "the worker was gone"}, "missed: the worker was gone"),
    ],
)
def test_bounds(result, changes, flaw):
    assert next(iter(replace(result, **changes).flaws), None) == flaw


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"status": "FAILED"}, "status=FAILED"),
        ({"status": "FAILED", "way": "timeout"}, "status=FAILED"),
        ({"status": "FAILED", "at_deadline": True}, "status=FAILED"),
        ({"status": "FAILED", "way": "timeout", "at_deadline": True}, None),
        ({"status": "SUCCEEDED", "way": "timeout", "at_deadline": True}, "status=SUCCEEDED"),
        ({"stop_s": -0.1}, "stop_s=-0.1"),
        ({"stop_s": 60.1}, "stop_s=60.1"),
        ({"rows_kept": 0}, "no row kept"),
    ],
)
def test_stops_are_what_the_way_promises(changes, flaw):
    assert next(iter(replace(STOP, **changes).flaws), None) == flaw


def test_run_whose_check_raises_is_a_line_with_its_reason():
    def trigger(*_, **__):
        raise ConnectionError("Airflow is away")

    world = SimpleNamespace(airflow=SimpleNamespace(api=SimpleNamespace(trigger=trigger)))
    result = run(Setting(world, Pace(rows=3), VERSION), plan(0), {})
    assert result.flaws == ["missed: ConnectionError: Airflow is away"]


def test_seeds_cover_all_kinds_and_modes_and_stay_what_they_are():
    kills = [plan(seed) for seed in range(14)]
    assert {kill.kind for kill in kills[:7]} == {*KINDS}
    assert len({(kill.kind, kill.mode) for kill in kills}) == 13  # a triggerer has one mode
    assert kills == [plan(seed) for seed in range(14)]


def test_early_kills_come_before_engines_are_ready():
    assert max(plan(seed, early=True).share for seed in range(14)) < 0.4


def test_every_run_counts(tmp_path):
    file = tmp_path / "results.jsonl"
    for one in (
        replace(GOOD, lost=3),
        GOOD,  # the same seed again, which repairs nothing
        replace(GOOD, seed=2, duplicated=1),
        replace(QUIET, seed=3, phase="", missed="the worker was gone 20.1 s after the run began"),
        replace(QUIET, seed=-1, kind="none", phase="", wrong=2),
    ):
        results.append(file, one)
    results.append(file, replace(STOP, stop_s=12.25))
    runs, stops = results.read(file)
    assert results.summary(runs, stops) == (
        "chaos: runs=5 missed=1 flawed=4 lost=3 duplicated=1 wrong=2 overdue=0 unexplained=0 late=0 "
        "stop_max_s=12.2"
    )
    assert "stop_max_s" not in results.summary(runs, [])
    page = list(table.page(runs, stops))
    assert "0.1-3-gabc" in "\n".join(page)
    (all_,) = (line for line in page if line.startswith("| all |"))
    assert all_.startswith("| all | 5 | 0 | 3 | 0 | 0 | 1 |")


def test_a_table_is_of_one_committed_version():
    with pytest.raises(ValueError, match=r"the lines are from \['0.1-3-gabc', 'other'\]"):
        list(table.page([GOOD, replace(GOOD, version="other")], []))
    with pytest.raises(ValueError, match="not committed"):
        list(table.page([replace(GOOD, version="x-dirty")], []))


def test_a_run_that_begins_in_the_middle_of_a_kill_was_not_hit(tmp_path):
    world = object.__new__(World)
    world.live = [Live(SimpleNamespace(), tmp_path)]
    world._lose_opened(lambda pid: True)
    assert not world.live[0].lost
