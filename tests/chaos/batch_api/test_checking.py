# SPDX-License-Identifier: Apache-2.0
"""The checks of a round find what they are for."""

from __future__ import annotations

import json

import pytest

from tests.support.engine_log import Engine

from .asked import Asked, Loss, asked
from .checking import Seen, steps_back, wrong_end, wrong_lines
from .plan import KINDS, MOMENTS, plan

ROWS = {"a": "text a", "b": "text b"}


def look(at, status="in_progress", seconds=0.1, server="one", counts=(2, 0, 0), **fields):
    total, completed, failed = counts
    batch = {
        "id": "batch_1",
        "status": status,
        "created_at": 1,
        "request_counts": {"total": total, "completed": completed, "failed": failed},
        **fields,
    }
    return Seen(at, at + seconds, server, batch)


def good(name, text=None, **fields):
    message = {"content": text or ROWS.get(name, "")}
    response = {"status_code": 200, "body": {"choices": [{"message": message}]}}
    return {"id": f"batch_req_{name}", "custom_id": name, "response": response, "error": None, **fields}


def unanswered(name, code="batch_cancelled"):
    return {"id": f"batch_req_{name}", "custom_id": name, "response": None, "error": {"code": code}}


def text(*lines):
    return "".join(json.dumps(one) + "\n" for one in lines)


def test_states_in_order_are_no_flaw():
    looks = [
        look(0, "validating", counts=(0, 0, 0)),
        look(1, counts=(2, 0, 0), in_progress_at=5),
        look(2, "finalizing", counts=(2, 2, 0), in_progress_at=5, finalizing_at=6),
        look(3, "completed", counts=(2, 2, 0), in_progress_at=5, finalizing_at=6, output_file_id="file-1"),
    ]
    assert steps_back(looks) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (look(0, "finalizing"), look(1, "in_progress")),
        (look(0, "cancelling"), look(1, "completed")),
        (look(0, "completed"), look(1, "cancelled")),
        (look(0, counts=(2, 2, 0)), look(1, counts=(2, 1, 0))),
        (look(0, in_progress_at=5), look(1, in_progress_at=6)),
        (look(0, in_progress_at=5), look(1, in_progress_at=None)),
        (look(0, created_at=1), look(1, created_at=2)),
        (look(0, output_file_id="file-1"), look(1, output_file_id="file-2")),
    ],
)
def test_step_back_is_found(before, after):
    assert len(steps_back([before, after])) == 1


def test_step_back_behind_a_third_look_is_found():
    """The second look shows less of one thing and more of another."""
    looks = [look(0, counts=(2, 2, 0)), look(1, "finalizing", counts=(2, 2, 0)), look(2, counts=(2, 2, 0))]
    assert len(steps_back(looks)) == 1


def test_looks_side_by_side_have_no_order():
    assert steps_back([look(0, "completed", seconds=5), look(1, "in_progress")]) == []


def test_whole_files_are_no_flaw():
    assert wrong_lines(ROWS, text(good("a"), good("b")), "", is_cancelled=False) == ([], 2)
    assert wrong_lines(ROWS, text(good("a")), text(unanswered("b")), is_cancelled=True) == ([], 1)


@pytest.mark.parametrize(
    ("output", "errors", "is_cancelled"),
    [
        ([good("a")], [], False),
        ([good("a"), good("b"), good("b", id="batch_req_c")], [], False),
        ([good("a"), good("b", text="text a")], [], False),
        ([good("a"), good("b", id="batch_req_a")], [], False),
        ([good("a")], [unanswered("b")], False),
        ([good("a")], [unanswered("b", "batch_expired")], True),
        ([good("a"), good("b")], [unanswered("b") | {"id": "batch_req_c"}], True),
    ],
    ids=["lost", "twice", "wrong answer", "one id", "no answer", "other error", "in both files"],
)
def test_wrong_line_is_found(output, errors, is_cancelled):
    flaws, _ = wrong_lines(ROWS, text(*output), text(*errors), is_cancelled=is_cancelled)
    assert len(flaws) == 1


def ended(status="completed", counts=(2, 2, 0), **fields):
    times = {"in_progress_at": 2, "finalizing_at": 3, "completed_at": 4}
    return look(0, status, counts=counts, **{**times, "errors": None, **fields}).batch


def test_wrong_end_is_found():
    assert wrong_end(ended(), 2, 2, was_cancelled=False) == []
    assert wrong_end(ended(counts=(2, 1, 0)), 2, 2, was_cancelled=False)
    assert wrong_end(ended(counts=(2, 1, 1)), 2, 1, was_cancelled=False)
    assert wrong_end(ended("failed"), 2, 2, was_cancelled=False)
    assert wrong_end(ended(finalizing_at=5), 2, 2, was_cancelled=False)
    assert wrong_end(ended(completed_at=None), 2, 2, was_cancelled=False)
    assert wrong_end(ended(), 2, 2, was_cancelled=True)


def engine(pid, submission, *requests, opened=0.0):
    return Engine(pid, submission, opened, asked=[*requests])


def test_each_prompt_asked_once_is_no_flaw():
    one, two = engine(1, "s1", ("p", 1), ("q", 2)), engine(2, "s2", ("other", 1))
    assert asked([one, two], {"p", "q"}, {"p": 3, "q": 3}, []) == Asked(requests=2)


def test_request_that_a_kill_took_may_be_made_again():
    engines = [engine(1, "s1", ("p", 1), ("q", 2)), engine(2, "s2", ("q", 9), opened=8)]
    found = asked(engines, {"p", "q"}, {"p": 2, "q": 10}, [Loss(1, 5)])
    assert found == Asked(requests=3, again=1, in_flight=1)


def test_request_without_a_kill_is_unexplained():
    engines = [engine(1, "s1", ("q", 2)), engine(2, "s2", ("q", 9), opened=8)]
    assert asked(engines, {"q"}, {"q": 10}, [Loss(3, 5)]).unexplained == 1


def test_request_with_a_durable_answer_is_late():
    engines = [engine(1, "s1", ("q", 2)), engine(2, "s2", ("q", 9), opened=8)]
    found = asked(engines, {"q"}, {"q": 3}, [Loss(1, 5)])
    assert (found.unexplained, found.late) == (1, 1)


def test_two_jobs_side_by_side_are_found():
    engines = [engine(1, "s1", ("p", 1), ("r", 9)), engine(2, "s2", ("q", 5))]
    assert asked(engines, {"p", "q", "r"}, {}, []).side_by_side == 1


def test_four_rounds_have_each_kind_and_moment():
    kills = [kill for seed in range(4) for kill in plan(seed)]
    assert {kill.moment for kill in kills if kill.kind == "server"} == {*MOMENTS}
    assert all(sum(kill.kind == kind for kill in kills) == 8 for kind in KINDS)
    assert plan(1) == plan(1) != plan(2)
