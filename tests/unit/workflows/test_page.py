# SPDX-License-Identifier: Apache-2.0
"""The code of docs/workflows.md runs unchanged, block by block."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.dataset import Rows
from tests.support.datasets import inferred

PAGE = Path(__file__).resolve().parents[3] / "docs/workflows.md"
TEXT = "The harbour was quiet in the morning and the boats came home with the fish that they had caught"


def drafted(number: int) -> dict[str, Any]:
    """Return a row in steps; every second draft was repaired."""
    draft, repair = (f"draft {number}", None) if number % 2 == 0 else (None, f"repair {number}")
    return {
        "id": number, "draft_question": draft, "draft_answer": draft,
        "repair_question": repair, "repair_answer": repair,
    }  # fmt: skip


def test_the_recipes_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [
        '{"question": "What do green plants make out of air, water and light?", "answer": "Sugar."}',
        '{"question": "What do green plants make out of air, water and light", "answer": "Sugar."}',
        '{"question": "Who?"}',
    ]
    sums = [{"id": n, "question": f"{n} + {n}?", "answer": 2 * n} for n in range(40)]
    choices = [
        {"pair": str(n), "order": order, "response": "tie"} for n in range(3) for order in ("ab", "ba")
    ]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.jsonl").write_text(json.dumps({"text": TEXT}) + "\nbroken\n")
    space: dict[str, Any] = {
        "lake": str(tmp_path),
        "generated": inferred(
            tmp_path / "a", [{"id": n, "topic": "sea", "response": one} for n, one in enumerate(pairs)]
        ),
        "drafted": inferred(tmp_path / "g", [drafted(n) for n in range(2)]),
        "old_answers": inferred(tmp_path / "b", [{**one, "response": str(one["id"])} for one in sums]),
        "new_answers": inferred(
            tmp_path / "c", [{**one, "response": f"It is {one['answer']}."} for one in sums]
        ),
        "embedded": inferred(
            tmp_path / "e",
            [
                {"id": n, "text": TEXT, "embedding": one}
                for n, one in enumerate(([1.0, 0.0], [0.0, 1.0], [0.1, 9.0]))
            ],
        ),
        "scored_texts": inferred(
            tmp_path / "f", [{"id": n, "prompt_mean_logprob": -2.0 - n} for n in range(9)]
        ),
        "judged_pairs": inferred(tmp_path / "d", choices),
    }
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, space)
    assert [row["reason"] for row in Rows(space["failed"].result).rows()] == [
        "the response does not fit the schema ($: 'answer' is a required property)"
    ]
    assert [row["rule"] for row in Rows(space["duplicates"].result).rows()] == ["near_duplicate"]
    assert [row["rule"] for row in Rows(space["dropped"].result).rows()] == ["broken_row"]
    assert [row["rule"] for row in Rows(space["same_meaning"].result).rows()] == ["semantic_duplicate"]
    assert [row["question"] for row in Rows(space["pairs_of_both"].result).rows()] == ["draft 0", "repair 1"]
    assert space["known"]["2"] == -4
    assert space["decision"].promoted == "new"
    assert space["verdict"].ties == 3
    assert (tmp_path / "accepted/card.md").exists()
    assert "| readable | 1 | 50.0% | - | broken_row: 1 |" in capsys.readouterr().out
