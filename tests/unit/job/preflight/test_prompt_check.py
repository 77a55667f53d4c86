# SPDX-License-Identifier: Apache-2.0
"""What the check of a model tells of the first rows, and when that ends the job before an engine starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.engine.base import overlong
from airflow_provider_raybatch.job.monitor.budgets import Tolerance
from airflow_provider_raybatch.job.preflight.input_check import SampledRows
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.prompt_check import check_prompts
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.specs import spec

NULL = RowFailure("template", "column 'text' is null")
TOKENS = ("<|im_start|>", "<|im_end|>")


def sample(*texts: str | None) -> SampledRows:
    """Rows with these texts; one without makes no request."""
    requests = [Request(messages=[{"role": "user", "content": text}]) for text in texts if text is not None]
    failures = [(ordinal, NULL) for ordinal, text in enumerate(texts) if text is None]
    return SampledRows(requests, failures, len(texts))


def told(
    rows: SampledRows, checked: ModelCheck, limits: LimitArguments | None = None, **fields: Any
) -> list[str]:
    notices: list[Notice] = []
    tolerance = Tolerance(limits or LimitArguments(max_error_fraction=0.5), rows.rows)
    refusal = check_prompts(spec(**fields), rows, checked, tolerance, notices.append)
    if refusal is not None:
        refusal.unless(np.zeros(rows.rows, np.bool_))
    return [notice.message for notice in notices]


def test_more_prompts_without_room_than_may_fail_end_the_job() -> None:
    rows = sample("a", None, "long", "long", *["b"] * 296)
    checked = ModelCheck(failures=((1, overlong(5000, 4096)), (2, overlong(6000, 4096))))
    with pytest.raises(RaybatchError) as caught:
        told(rows, checked, LimitArguments(max_error_fraction=0.005))
    assert caught.value.failure_class is FailureClass.TOO_MANY_ERRORS
    assert str(caught.value) == (
        "max_error_fraction: 3 of the first 300 rows fail already, more than the 1 of 300 rows that "
        "max_error_fraction=0.005 allows: 2 in step 'tokenize' (row 2: the prompt has 5,000 tokens and "
        "max_model_len is 4,096, which leaves no room for a response), 1 in step "
        "'template' (row 1: column 'text' is null); mend them, cut long values with "
        "on_overlong='truncate', or raise max_error_fraction."
    )


def test_prompts_that_may_fail_are_a_warning() -> None:
    rows = sample("a", None, "long")
    (text,) = told(rows, ModelCheck(failures=((1, overlong(5000, 4096)),)), LimitArguments(max_errors=2))
    assert text.startswith(
        "1 of the first 3 rows will be dead letters: 1 in step 'tokenize' (row 2: the prompt"
    )


def test_a_later_step_that_fails_alone_is_a_warning() -> None:
    """Its tools may leave no room where the first step has none."""
    rows = sample("a", "b")
    asked = [*rows.requests, Request(messages=[], step="act")]
    checked = ModelCheck(failures=((2, overlong(5000, 4096)),))
    (text,) = told(rows._replace(requests=asked), checked)
    assert text.startswith("steps: act: its first request will fail: 1 in step 'tokenize' (row 0: the prompt")


def test_special_tokens_in_the_first_rows_are_counted() -> None:
    rows = sample("a", "b<|im_end|>", None, "<|im_start|>c<|im_end|>")
    checked = ModelCheck(special_tokens=TOKENS)
    assert told(rows, checked) == [
        "2 of the first 4 rows have special tokens in their text ('<|im_end|>', '<|im_start|>'), which act "
        "as turns of the chat; if that is not meant, set special_tokens_in_text to 'escape'."
    ]
    (escaped,) = told(rows, checked, special_tokens_in_text="escape")
    assert escaped.endswith("('<|im_end|>', '<|im_start|>'), which are escaped.")
    raw = SampledRows([Request(prompt="<|im_start|>user")], [], 1)  # which has to be marked up
    assert told(raw, checked) == []


def test_special_tokens_in_text_may_be_dead_letters() -> None:
    """Also of a check that is kept, which has not seen these rows."""
    rows = sample("a", "b<|im_end|>", "c")
    checked = ModelCheck(special_tokens=TOKENS)
    (text,) = told(rows, checked, special_tokens_in_text="error")
    assert text.startswith("1 of the first 3 rows will be dead letters: 1 in step 'tokenize' (row 1: ")
    with pytest.raises(RaybatchError, match="mend them or raise max_error_fraction"):
        told(rows, checked, LimitArguments(), special_tokens_in_text="error")


def test_prompts_that_are_cut_are_counted_and_no_failures() -> None:
    checked = ModelCheck(truncated=2, context=4096, longest=6000)
    assert told(sample("a", "b", "c"), checked, LimitArguments(), on_overlong="truncate") == [
        "2 of the first 3 prompts exceed the context of 4,096 tokens (the longest has 6,000); the longest "
        "values of their rows are cut."
    ]
    assert told(sample("a"), ModelCheck(), LimitArguments()) == []
