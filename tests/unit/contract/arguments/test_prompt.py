# SPDX-License-Identifier: Apache-2.0
"""A prompt knows its columns, and each request depends on its row."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.prompt import PromptArguments
from airflow_provider_raybatch.contract.base import parse
from tests.support.specs import spec, spec_error

NO_COLUMN = "names no column, so each row would pay for the same request; "


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (
            {"prompt": "T {subject}"},
            f"prompt: 'T {{subject}}' {NO_COLUMN}write {{subject}} as {{row.subject}} if it is a column.",
        ),
        (
            {"prompt": "T {row.a or"},
            f"prompt: 'T {{row.a or' {NO_COLUMN}write {{row.a as {{row.a}} if it is a column.",
        ),
        (
            {"prompt": "T", "system_prompt": '{"a": 1} {row} {row.Ticket ID}'},
            f"prompt: 'T' {NO_COLUMN}write {{row.Ticket ID}} as {{row['Ticket ID']}} if it is a column.",
        ),
        (
            {"prompt": "T", "system_prompt": '{"a": 1} {row}'},
            f"prompt: 'T' {NO_COLUMN}name one as {{row.name}}, or set n in sampling for several answers to "
            "one request.",
        ),
        (
            {"messages": [{"role": "user", "content": "T {{ row.x }}"}]},
            "messages: '{{ row.x }}' has double braces, which are Airflow's; write '{row.x}'.",
        ),
        (
            {"prompt": "{row.a} {{ row['b c'] }}"},
            "prompt: \"{{ row['b c'] }}\" has double braces, which are Airflow's; write \"{row['b c']}\".",
        ),
    ],
)
def test_a_request_that_no_row_changes_is_refused(prompt: dict[str, Any], message: str) -> None:
    assert spec_error(**prompt) == message


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
    assert of_column.column_arguments() == {"m": "messages_column", "x": "system_prompt"}
    of_function = PromptArguments(prompt_function="m:f", system_prompt="{row.x}")
    assert of_function.column_arguments() == {"x": "system_prompt"}
