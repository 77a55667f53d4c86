# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_provider_raybatch.cluster.follow.outcome import FollowState, Observation, Outcome
from airflow_provider_raybatch.cluster.follow.outcome import judge as judge_with
from airflow_provider_raybatch.cluster.jobs_api.models import TAIL_LINES, JobInfo, JobStatus
from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.events import MARKER
from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.committed import COMMITTED, KEY, SUMMARY
from tests.support.refused import HOSTILE, refused

STATE = FollowState(session_name="s1")
PROGRESS = [events.line(events.Progress(done=done, total=9), KEY, done) for done in range(3)]


def judge(observation, state, **options):
    return judge_with(observation, state, **{"key": KEY, **options})


def observe(status="RUNNING", tail=(), at=100.0, **fields):
    return Observation(
        at=at, info=JobInfo("x", JobStatus(status), **fields), tail=tail if tail is None else tuple(tail)
    )


def texts(verdict):
    return [line.text for line in verdict.lines]


def failed(failure_class, message="The bucket is gone."):
    return events.line(events.Failed(failure_class=failure_class, message=message), KEY, 80)


FAILED = failed(FailureClass.STORAGE)
KEPT = events.line(events.Progress(done=1500, total=3000, kept=1455), KEY, 4)
COMMAND_ERROR = {
    "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR",
    "driver_exit_code": 1,
    "message": "exit code 1",
}
NODE_ERROR = {"error_type": "JOB_SUPERVISOR_ACTOR_DIED", "message": "gone"}
DONE = "3 of 4 rows committed at /o (1 failed); 0 tokens paid, 0 saved; manifest /m"
GONE = "The bucket is gone."
OUTSIDE = "The job was stopped outside of this task."


@pytest.mark.parametrize(
    ("end", "state", "failure_class", "message"),
    [
        (observe("SUCCEEDED", ["noise", COMMITTED, "bye"]), "succeeded", None, DONE),
        (observe("SUCCEEDED", ["noise"]), "succeeded", None, "The job finished successfully."),
        # A committed dataset stands, whatever follows.
        (observe("FAILED", [FAILED, COMMITTED, "Segmentation fault"]), "succeeded", None, DONE),
        (observe("STOPPED", [COMMITTED, FAILED]), "succeeded", None, DONE),
        (observe("FAILED", [KEPT, FAILED, "x"], **COMMAND_ERROR), "failed", FailureClass.STORAGE, GONE),
        (observe("FAILED", ["x"], **NODE_ERROR), "failed", FailureClass.NODE_LOST, "The job failed: gone"),
        (observe("STOPPED"), "stopped", FailureClass.CANCELLED, OUTSIDE),
        (observe("STOPPED", [KEPT, failed(FailureClass.TIMEOUT)]), "failed", FailureClass.TIMEOUT, GONE),
        (observe("STOPPED", [KEPT, failed(FailureClass.CANCELLED)]), "stopped", FailureClass.CANCELLED, GONE),
        # A failure in a driver that is being stopped is no reason for a retry.
        (observe("STOPPED", [FAILED]), "stopped", FailureClass.CANCELLED, OUTSIDE),
        (observe("STOPPED", PROGRESS), "stopped", FailureClass.CANCELLED, OUTSIDE),
    ],
)
def test_how_a_job_ended(end, state, failure_class, message):
    outcome = judge(end, STATE).outcome
    assert (outcome.state, outcome.failure_class) == (state, failure_class)
    assert outcome.message == message
    assert outcome.summary == (SUMMARY if message is DONE else None)


def test_failure_before_the_driver_has_its_key_is_retried():
    sentence = "cluster_lost: credentials: their package is gone; the retry sends it again."
    log = ("2026-01-01 INFO worker.py:1 -- Connecting to existing Ray cluster", sentence)
    info = {**COMMAND_ERROR, "message": "\n".join(("Job entrypoint command failed with exit code 1", *log))}
    outcome = judge(observe("FAILED", log, **info), FollowState()).outcome
    assert outcome.failure_class is FailureClass.INTERNAL
    assert outcome.message == f"The job failed (exit code 1): {sentence}"


@pytest.mark.parametrize(
    ("known", "session", "state", "failure_class"),
    [
        ("s1", "s1", "deleted", FailureClass.CANCELLED),
        ("s1", "s2", "lost", FailureClass.CLUSTER_LOST),
        (None, None, "lost", FailureClass.CLUSTER_LOST),
    ],
)
def test_an_unknown_job_is_deleted_or_lost(known, session, state, failure_class):
    outcome = judge(Observation(at=1, session_name=session), FollowState(session_name=known)).outcome
    assert (outcome.state, outcome.failure_class) == (state, failure_class)


@pytest.mark.parametrize(
    "end",
    [
        observe("FAILED", [KEPT, "Killed"], **{**COMMAND_ERROR, "driver_exit_code": 137}),
        observe("FAILED", [KEPT], **NODE_ERROR),
        observe("STOPPED", [KEPT]),
        observe("RUNNING", [KEPT], at=900.0),
        Observation(at=1, session_name="s1"),
        Observation(at=1, session_name="s2"),
    ],
    ids=["killed", "node", "stopped", "late", "deleted", "lost"],
)
def test_end_without_the_drivers_word_says_which_rows_are_kept(end):
    state = judge(observe(tail=[KEPT]), STATE).state
    kept = "; 1,455 of 3,000 rows are kept, and the next attempt goes on from there."
    assert judge(end, state, deadline=800).outcome.message.endswith(kept)
    if end.info is not None:  # for a follower that has just begun, too
        begun = FollowState(session_name="s1", from_start=False)
        assert judge(end, begun, deadline=800).outcome.message.endswith(kept)


@pytest.mark.parametrize("code", [-9, 1])
def test_a_last_line_that_is_an_event_is_told_by_its_sentence(code):
    """Ray's message ends with the log, and a killed driver's log most often with its progress."""
    message = f"Job entrypoint command failed with exit code {code}, last available logs:\n{KEPT}\n"
    error = {**COMMAND_ERROR, "driver_exit_code": code, "message": message}
    told = judge(observe("FAILED", [KEPT], **error), STATE).outcome.message
    assert ": 1,500 of 3,000 rows (50.0 %); 1,455 of 3,000 rows are kept" in told


def test_silence_is_tolerated_for_a_limited_time():
    state, lines = STATE, []
    for at in (100.0, 300.0, 699.0):
        verdict = judge(Observation(at=at, error="No answer."), state, unreachable_timeout=600)
        assert verdict.outcome is None
        lines += verdict.lines
        state = verdict.state
    assert [line.level for line in lines] == ["warning"]
    outcome = judge(Observation(at=700.0, error="No answer."), state, unreachable_timeout=600).outcome
    assert (outcome.state, outcome.failure_class) == ("unreachable", FailureClass.CLUSTER_UNREACHABLE)
    assert "retry" not in outcome.message  # the operator says whether an attempt follows
    assert "600 s" in outcome.message


def test_an_answer_resets_the_clock():
    state = judge(Observation(at=100.0, error="No answer."), STATE).state
    verdict = judge(observe(at=160.0), state)
    assert texts(verdict) == ["The Ray cluster answers again after 60 s."]
    verdict = judge(Observation(at=800.0, error="No answer."), verdict.state, unreachable_timeout=600)
    assert verdict.outcome is None


def test_the_deadline():
    assert judge(observe(at=99.0), STATE, deadline=100).outcome is None
    for late in (observe(at=100.0), Observation(at=100.0, error="No answer.")):
        outcome = judge(late, STATE, deadline=100).outcome
        assert (outcome.state, outcome.failure_class) == ("timeout", FailureClass.TIMEOUT)
    in_time = observe("SUCCEEDED", [COMMITTED], at=200.0)
    assert judge(in_time, STATE, deadline=100).outcome.state == "succeeded"


def test_each_line_is_logged_once():
    first = judge(observe(tail=["a", PROGRESS[0]]), STATE)
    second = judge(observe(tail=["a", PROGRESS[0], "b", PROGRESS[1]]), first.state)
    copied = judge(observe(tail=["a", PROGRESS[0], "b", PROGRESS[1], PROGRESS[0]]), second.state)
    assert texts(first) == ["a", "0 of 9 rows (0.0 %)"]
    assert texts(second) == ["b", "1 of 9 rows (11.1 %)"]
    assert texts(copied) == []


def test_restarted_follower_logs_only_the_last_progress():
    state = FollowState(session_name="s1", from_start=False)
    verdict = judge(observe(tail=["a", *PROGRESS, "b"]), state)
    assert texts(verdict) == ["2 of 9 rows (22.2 %)"]
    assert texts(judge(observe(tail=["a", *PROGRESS, "b", "c"]), verdict.state)) == ["c"]


def test_a_log_that_cannot_be_read_is_caught_up_with():
    first = judge(observe(tail=["a"]), STATE)
    blind = judge(observe(tail=None), first.state)
    assert blind.lines == ()
    assert texts(judge(observe(tail=["a", "b"]), blind.state)) == ["b"]


def test_tail_with_a_gap_is_reported_and_keeps_events():
    state = judge(observe(tail=["before"]), STATE).state
    flood = [f"line {number}" for number in range(3000)]
    flood[10] = PROGRESS[1]
    verdict = judge(
        Observation(at=1, info=JobInfo("x", JobStatus.RUNNING), tail=("before", *flood), tail_limit=20_000),
        state,
    )
    logged = texts(verdict)
    assert "1,999 lines of the driver's log left out" in logged[0]
    assert logged[1].startswith("1 of 9 rows")
    assert logged[2:] == flood[-TAIL_LINES:]
    assert texts(judge(observe(tail=flood[-TAIL_LINES:]), verdict.state)) == []


def test_events_before_the_shown_lines_are_no_gap():
    lines = [f"line {number}" for number in range(TAIL_LINES)]
    tail = ("before", PROGRESS[1], *lines)
    observation = replace(observe(tail=tail), tail_limit=20_000)
    verdict = judge(observation, judge(observe(tail=["before"]), STATE).state)
    assert texts(verdict) == ["1 of 9 rows (11.1 %)", *lines]


def test_lines_that_no_poll_saw_are_reported():
    flood = [f"line {number}" for number in range(TAIL_LINES)]
    verdict = judge(observe(tail=flood), judge(observe(tail=["before"]), STATE).state)
    assert "More than 1,000 lines" in texts(verdict)[0]
    assert len(verdict.lines) == TAIL_LINES + 1
    first = judge(observe(tail=flood), STATE)
    assert "Earlier lines of the driver's log left out" in texts(first)[0]


def test_log_empty_at_the_first_poll_may_omit_lines():
    state = judge(observe(tail=[]), STATE).state
    flood = tuple(f"line {number}" for number in range(100))
    info = JobInfo("x", JobStatus.RUNNING)
    verdict = judge(Observation(at=1, info=info, tail=flood, tail_limit=100), state)
    assert "Earlier lines of the driver's log left out" in texts(verdict)[0]
    whole = judge(Observation(at=1, info=info, tail=flood, tail_limit=101), state)
    assert texts(whole) == list(flood)


def test_finished_job_without_its_log_is_polled_again():
    state = STATE
    for _ in range(2):
        verdict = judge(observe("SUCCEEDED", None), state)
        assert verdict.outcome is None
        state = verdict.state
    assert judge(observe("SUCCEEDED", [COMMITTED]), state).outcome.summary == SUMMARY
    assert judge(observe("SUCCEEDED", None), state).outcome.state == "succeeded"


def test_rays_message_replaces_an_unreachable_log():
    observation = observe("FAILED", None, message=f"last logs:\n{FAILED}\n")
    state = FollowState(session_name="s1", polls_without_log=2)
    assert judge(observation, state).outcome.failure_class is FailureClass.STORAGE


def test_levels():
    warning = events.line(events.Notice(level="warning", message="w"), KEY, 3)
    notice = events.line(events.Notice(message="n", at=3601.0), KEY, 4)
    newer = MARKER + '{"event": "newer"}'
    verdict = judge(observe(tail=["raw", warning, notice, FAILED, newer]), STATE)
    assert [line.level for line in verdict.lines] == ["info", "warning", "info", "error", "info"]
    assert texts(verdict) == ["raw", "w", "[01:00:01] n", "storage: The bucket is gone.", newer]


def test_lines_of_ray_itself_are_marked_or_left_to_rays_log():
    """Those of the log that are left out count as seen, so none comes twice."""
    noise = "2026-11-22 04:15:41,123\tINFO job_manager.py:581 -- Runtime env is setting up."
    error = "[2026-11-22 04:15:41,123 E 2741 2790] core_worker.cc:1020: Failed to establish connection"
    first = judge(observe(tail=[noise, "mine"]), STATE)
    assert texts(first) == ["mine"]
    assert texts(judge(observe(tail=[noise, "mine", noise, error]), first.state)) == [f"Ray: {error}"]
    own = "Running entrypoint for job x: python -m airflow_provider_raybatch.job spec.json"
    assert texts(judge(observe(tail=[own]), STATE)) == []
    assert texts(judge(observe(tail=[own]), STATE, key=None)) == [own]  # of a raw job


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("succeeded", None, "m", SUMMARY, JobInfo("x", JobStatus.SUCCEEDED)),
        Outcome("failed", FailureClass.STORAGE, "m", None, JobInfo("x", JobStatus.FAILED)),
        Outcome("timeout", FailureClass.TIMEOUT, "m", None, JobInfo("x", JobStatus.RUNNING)),
        Outcome("lost", FailureClass.CLUSTER_LOST, "m"),
    ],
)
def test_outcomes_survive_json(outcome):
    found = Outcome.from_json(json.loads(json.dumps(outcome.to_json())))
    assert found == replace(outcome, info=None, ended=outcome.saw_the_end)
    assert found.saw_the_end is outcome.saw_the_end


def test_event_of_a_trigger_is_small_and_fit_for_a_database():
    info = JobInfo("x", JobStatus.FAILED, "a command", "ten lines of a log", metadata={"owner": "me"})
    summary = SUMMARY.model_copy(update={"uri": "/\0"})
    plain = Outcome("failed", FailureClass.STORAGE, HOSTILE, summary, info).to_json()
    assert refused(plain) == []
    assert set(plain) == {"state", "failure_class", "message", "summary", "ended"}


FORGERIES = {
    "no signature": MARKER + events.Committed(summary=SUMMARY).model_dump_json(),
    "a signature of nothing": f"{MARKER}0 {'0' * 32} " + events.Committed(summary=SUMMARY).model_dump_json(),
    "another job's key": events.line(events.Committed(summary=SUMMARY), "cd" * 32, 0),
    "a changed document": COMMITTED.replace("/o", "/p"),
    "a changed number": COMMITTED.replace(" 90 ", " 91 "),
}


@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES)
def test_only_signed_lines_of_the_driver_are_events(forged):
    verdict = judge(observe("FAILED", [FAILED, forged]), STATE)
    assert (verdict.outcome.state, verdict.outcome.summary) == ("failed", None)
    assert texts(verdict)[-1] == forged
    assert judge(observe("FAILED", [forged], message="boom"), STATE).outcome.message.endswith("boom")
    assert judge(observe("SUCCEEDED", [forged]), STATE).outcome.summary is None


def test_a_job_without_a_key_has_no_events():
    verdict = judge(observe("FAILED", [COMMITTED], message="boom"), STATE, key=None)
    assert (verdict.outcome.state, verdict.outcome.failure_class) == ("failed", FailureClass.INTERNAL)
    assert texts(verdict) == [COMMITTED]
