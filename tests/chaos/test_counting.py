# SPDX-License-Identifier: Apache-2.0
"""The harness sees what it looks for."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from . import results
from .plan import KINDS, plan
from .runs import Result
from .workload import Found, check, generated, output_of, write_source

GOOD = Result(
    seed=1,
    kind="engine",
    mode="blocking",
    with_family=False,
    killed=True,
    hits=["engine"],
    instant=3.0,
    before=400,
    state="success",
    rows=1000,
    generated=1010,
    in_flight=32,
    lost=0,
    duplicated=0,
    wrong=0,
    tries=1,
    submissions=1,
    seconds=40.0,
    expected=30.0,
)


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path, 100, seed=3)


@pytest.fixture
def output(source):
    return [{**row, **asdict(output_of(row)), "cached_tokens": 0} for row in source.values()]


def test_whole_output(source, output):
    assert check(source, reversed(output)) == Found()


def test_missing_double_and_foreign_rows(source, output):
    assert check(source, output[1:]) == Found(lost=1)
    assert check(source, [*output, output[5], output[5]]) == Found(duplicated=2)
    assert check(source, [*output, {**output[0], "id": 100}]) == Found(wrong=1)


@pytest.mark.parametrize("column", ["response", "finish_reason", "output_tokens", "weight", "text"])
def test_another_value_than_the_input_or_its_answer(column, source, output):
    output[7] = {**output[7], column: output[8][column] * 2}
    assert check(source, output) == Found(lost=1, wrong=1)


def test_answers_are_cut_like_the_engines():
    row = {"id": 4, "text": "a b c d e f"}
    assert asdict(output_of(row)) == {
        "response": "Row 4 says a b c d e",
        "finish_reason": "length",
        "input_tokens": 9,
        "output_tokens": 8,
    }


def test_generated_requests_of_all_processes_count(tmp_path):
    folder = tmp_path / "requests"
    folder.mkdir()
    for process in ("a", "b"):
        (folder / f"{process}.jsonl").write_text('{"at": 1.5, "prompt": "x"}\n')
    assert generated(tmp_path) == {"x": 2}


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"generated": 1052}, None),
        ({"generated": 1053}, "generated=1053 of 1000+32"),
        ({"generated": 999}, "generated=999 of 1000+32"),
        ({"lost": 2}, "lost=2"),
        ({"state": "failed"}, "state=failed"),
    ],
)
def test_bounds(changes, flaw):
    assert replace(GOOD, **changes).flaws == ([flaw] if flaw else [])


def test_seeds_cover_all_kinds_and_modes_and_stay_what_they_are():
    kills = [plan(seed) for seed in range(14)]
    assert {kill.kind for kill in kills[:7]} == {*KINDS}
    assert len({(kill.kind, kill.mode) for kill in kills}) == 13  # a triggerer has one mode
    assert kills == [plan(seed) for seed in range(14)]


def test_results_add_up_over_runs(tmp_path):
    file = tmp_path / "results.jsonl"
    for one in (
        replace(GOOD, lost=3),
        GOOD,  # the same seed again, which mends nothing
        replace(GOOD, seed=2, generated=1040, duplicated=1),
        replace(GOOD, seed=3, killed=False, lost=9),
        replace(GOOD, seed=-1, kind="none", lost=9),
    ):
        results.append_run(file, one)
    results.append(file, {"what": "stop", "stop_s": 12.25})
    assert results.summary(*results.read(file)) == (
        "chaos: runs=3 lost=3 duplicated=1 generated_ratio=1.008 stop_max_s=12.2"
    )
