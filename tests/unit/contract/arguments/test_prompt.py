# SPDX-License-Identifier: Apache-2.0
"""A prompt knows its columns, and each request depends on its row."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.prompt import PromptArguments
from airflow_provider_raybatch.contract.base import parse
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error

NO_COLUMN = "names no column, so each row would pay for the same request; "


def test_a_request_that_no_row_changes_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "T", "system_prompt": "{row.a}"},
        {"prompt_function": "m:f"},
        {"prompt": "T", "sampling_column": "s"},
        {"messages_column": "c", "system_prompt": "T"},
    ],
)
def test_one_part_that_the_row_changes_is_enough(fields: dict[str, Any]) -> None:
    assert spec(**fields)


def test_prompt_and_system_prompt_know_their_columns() -> None:
    chat = parse(
        PromptArguments,
        {
            "messages": [
                {"role": "system", "content": "{row.b}"},
                {"role": "user", "content": "{row.a}{row.b}"},
            ]
        },
    )
    assert list(chat.column_arguments()) == ["b", "a"]
    of_column = PromptArguments(messages_column="m", system_prompt="{row.m}{row.x}")
    assert of_column.column_arguments() == {"m": "messages", "x": "system_prompt"}
    of_function = PromptArguments(prompt_function="m:f", system_prompt="{row.x}")
    assert of_function.column_arguments() == {"x": "system_prompt"}
