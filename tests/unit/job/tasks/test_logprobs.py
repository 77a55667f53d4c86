# SPDX-License-Identifier: Apache-2.0
"""Log probabilities in the dataset: of responses, of each completion, and of given texts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.phases import publishing
from airflow_provider_raybatch.job.row import Completion, Response, TokenLogprobs
from airflow_provider_raybatch.job.tasks.generate import Generate
from airflow_provider_raybatch.job.tasks.optional_columns.kinds import means, token_lists
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.echo_place import EchoPlace
from tests.support.specs import spec

ROWS = [{"text": text} for text in ("one two", "three", "one two", "please break", "four five six")]
TEXTS = {5: "a", 6: "b", 7: "c"}


def logprobs(*rows: list[int], ranks: list[int], values: list[list[float]]) -> TokenLogprobs:
    return TokenLogprobs(
        np.array(rows, np.int32), np.array(values, np.float32), np.array(ranks, np.int32), TEXTS
    )


CHOSEN = logprobs([5], [7], ranks=[1, 3], values=[[-0.5], [-1.5]])
WITH_TWO = logprobs([6, 6, 5], ranks=[1], values=[[-0.25, -0.25, -2]])
PROMPT = logprobs([5, -1], [6, 7], ranks=[0, 2], values=[[math.nan, math.nan], [-1, -0.5]])
NOTHING = TokenLogprobs(np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32), np.zeros(0, np.int32), {})


def likely(token_id: int, logprob: float) -> dict[str, Any]:
    return {"token_id": token_id, "token": TEXTS[token_id], "logprob": logprob}


def test_tokens_become_lists_of_structs() -> None:
    assert token_lists([CHOSEN, None, WITH_TWO, NOTHING]).to_pylist() == [
        [
            {**likely(5, -0.5), "rank": 1, "top_logprobs": []},
            {**likely(7, -1.5), "rank": 3, "top_logprobs": []},
        ],
        None,
        [{**likely(6, -0.25), "rank": 1, "top_logprobs": [likely(6, -0.25), likely(5, -2.0)]}],
        [],
    ]
    assert token_lists([None]).to_pylist() == [None]
    assert token_lists([]).to_pylist() == []


def test_the_first_token_of_a_prompt_has_no_log_probability() -> None:
    (made,) = token_lists([PROMPT]).to_pylist()
    nothing = {"logprob": None, "rank": None, "top_logprobs": []}
    assert made == [
        {"token_id": 5, "token": "a", **nothing},
        {**likely(6, -1.0), "rank": 2, "top_logprobs": [likely(7, -0.5)]},
    ]


def test_means_are_of_the_tokens_that_have_one() -> None:
    assert means([CHOSEN, WITH_TWO, PROMPT, NOTHING, None]).to_pylist() == [-1.0, -0.25, -1.0, None, None]


def test_a_job_has_the_columns_that_it_asks_for() -> None:
    asked = Generate(spec(sampling={"logprobs": 0, "prompt_logprobs": 2}))
    assert asked.column_names[5:] == ["prompt_logprobs", "prompt_mean_logprob", "logprobs", "mean_logprob"]
    for sampling in ({}, {"logprobs": None}, {"logprobs": False}):
        assert len(Generate(spec(sampling=sampling)).column_names) == 5


def test_a_row_may_go_without() -> None:
    """The row's own sampling parameters can switch them off; its columns are null then."""
    task = Generate(spec(sampling={"logprobs": 0}, sampling_column="s"))
    given = Completion("x", "stop", 2, extra={"logprobs": CHOSEN})
    rows = task.outputs([Response((Completion("x", "stop", 1),), 1), Response((given, given), 1)]).to_pylist()
    assert [row["mean_logprob"] for row in rows] == [None, -1.0]
    assert [[one["mean_logprob"] for one in row["completions"]] for row in rows] == [[None], [-1.0, -1.0]]


def asks(place: EchoPlace, **fields: Any) -> dict[str, Any]:
    log = {"request_log": str(place.root / "log"), "fail_pattern": "break"}
    return {"engine_args": log, "reuse": str(place.root / "store"), "max_errors": 2, **fields}


def test_whole_jobs_share_responses_with_equal_columns(place: EchoPlace) -> None:
    """Equal rows, later jobs and failed rows are as without; no response without the columns is taken."""
    sampling = {"temperature": 0, "logprobs": 1}
    first = place.job(0, ROWS, **asks(place, sampling=sampling))
    rows = place.rows(first)
    assert [[one["token"] for one in row["logprobs"]] for row in rows] == [
        row["response"].split() for row in rows
    ]
    assert all(math.isclose(row["mean_logprob"], mean_of(row["logprobs"]), rel_tol=1e-6) for row in rows)
    assert [row["logprobs"][0]["top_logprobs"][0]["token"] for row in rows] == ["one", "three", "one", "four"]
    assert (first.counts.duplicates, first.counts.errors_by_step) == (1, {"engine": 1})
    plain = {"temperature": 0}
    for number, (other, reused) in enumerate([(sampling, 4), (plain, 0), (plain, 4), (sampling, 4)], start=1):
        place.folder = LocalFolder(str(place.root / f"out-{number}"))
        again = place.job(number, ROWS, **asks(place, sampling=other))
        assert again.counts.reused == reused
        assert all(row.get("logprobs") for row in place.rows(again)) is (other is sampling)


def mean_of(tokens: list[dict[str, Any]]) -> float:
    return sum(token["logprob"] for token in tokens) / len(tokens)


def test_each_completion_has_its_own(place: EchoPlace) -> None:
    asked = {"n": 2, "temperature": 1.0, "logprobs": 0}
    (row,) = place.rows(place.job(0, ROWS[:1], **asks(place, sampling=asked)))
    first, second = row["completions"]
    assert [token["token"] for token in second["logprobs"]] == second["text"].split()
    assert row["mean_logprob"] == first["mean_logprob"]


def test_reasoning_has_log_probabilities_too(place: EchoPlace) -> None:
    args = {**asks(place)["engine_args"], "reasoning_parser": "qwen3"}
    (row,) = place.rows(place.job(0, ROWS[:1], **asks(place, engine_args=args, sampling={"logprobs": 0})))
    assert len(row["logprobs"]) == row["output_tokens"] == row["reasoning_tokens"] + 2


def test_a_given_text_is_scored(place: EchoPlace) -> None:
    scores = {"sampling": {"max_tokens": 1, "prompt_logprobs": 0}, "prompt": None, "prompt_column": "text"}
    manifest = place.job(0, ROWS, **asks(place, **scores, destination_format="jsonl"))
    rows = place.rows(manifest)
    assert [len(row["prompt_logprobs"]) for row in rows] == [row["input_tokens"] for row in rows]
    assert [row["prompt_mean_logprob"] is None for row in rows] == [False, True, False, False]
    assert rows[0]["prompt_logprobs"][0]["logprob"] is None
    assert math.exp(-rows[0]["prompt_mean_logprob"]) > 1


def test_a_resumed_job_keeps_those_of_its_rows(place: EchoPlace) -> None:
    fields = asks(place, sampling={"logprobs": 0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "prepare", lambda *_: 1 / 0)
        with pytest.raises(RaybatchError):
            place.job(0, ROWS[:3], **fields)
    assert all(row["mean_logprob"] < 0 for row in place.rows(place.job(1, ROWS[:3], **fields)))
    assert place.generated() == 3


def test_a_row_may_not_ask_for_a_column_of_its_own(place: EchoPlace) -> None:
    rows = [{"text": "a", "s": {"logprobs": 1}}, {"text": "b", "s": {"top_k": 1}}]
    manifest = place.job(0, rows, **asks(place, sampling_column="s"))
    (letter,) = place.letters(manifest)
    assert letter["step"] == "template"
    assert letter["reason"] == (
        "sampling of the row: logprobs: the dataset has a column for it only where the job asks for it; "
        "set it in sampling, too"
    )
