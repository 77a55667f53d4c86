# SPDX-License-Identifier: Apache-2.0
"""A job whose prompts are cut to the context: the rows say so, also in a later job that reuses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.dataset import open_dataset
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.whole_job import attempt, without_cluster


def test_rows_with_cut_prompts_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in.jsonl"
    texts = ["one two", "word " * 100, "three"]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with monkeypatch.context() as patch:
        without_cluster(patch)
        for number in range(2):
            place, emitted = LocalFolder(str(tmp_path / f"out-{number}")), list[events.Event]()
            fields: dict[str, Any] = {
                "prompt": "Say {row.text} now",
                "on_overlong": "truncate",
                "engine_args": {"max_model_len": 40},
                "sampling": {"max_tokens": 10},
                "reuse": str(tmp_path / "store"),
            }
            summary = attempt(place, number, str(source), emitted, **fields)
            rows = open_dataset(summary.manifest_uri).to_arrow().to_pylist()
            assert [row["truncated_prompt_tokens"] for row in rows] == [0, 72, 0]
            assert [row["input_tokens"] for row in rows] == [4, 30, 3]
            told = [one.message for one in emitted if isinstance(one, events.Notice)]
            cut = "prompts cut to the context: 1; the column truncated_prompt_tokens has the tokens"
            assert (cut in told) is (number == 0)
        fields = {"prompt": "Say {row.text} now", "sampling": {"max_tokens": 10}}
        summary = attempt(LocalFolder(str(tmp_path / "whole")), 0, str(source), **fields)
        assert "truncated_prompt_tokens" not in open_dataset(summary.manifest_uri).to_arrow().column_names
