# SPDX-License-Identifier: Apache-2.0
"""With ``report_samples=0``, neither a job on Ray nor Ray's own files say what rows hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.bad_inputs import Place
from tests.support.openai_lines import IN_AND_OUT, chat, line
from tests.support.row_canaries import canary, found_in, outside, rows_of

SAYS_IT = """
def make(row, response=None):
    if row["id"] % 4 == {part}: raise KeyError(row["text"])
    return {made}
"""


def functions(place: Place, made: str) -> dict[str, Any]:
    """Return a prompt_function and a postprocess that quote a quarter of the rows each in their errors."""
    return {
        "prompt_function": place.function(SAYS_IT.format(part=1, made='row["text"]')),
        "postprocess": place.function(SAYS_IT.format(part=2, made=made)),
    }


def logs_of_ray() -> Iterator[tuple[str, str]]:
    """Yield what Ray and its workers have logged in this session."""
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    for path in (session / "logs").rglob("*"):
        if path.is_file():
            yield str(path.relative_to(session)), path.read_text(errors="replace")


def shown(place: Place) -> list[tuple[str, str]]:
    found = [*outside(LocalFolder(str(place.out)), place.emitted, None), ("printed", place.printed)]
    return [*found, *logs_of_ray()]


def rows() -> list[dict[str, Any]]:
    return [{"id": number, "text": f"{canary('text')} {number}"} for number in range(40)]


def test_errors_of_functions_and_poison_rows_quote_nothing(place: Place, ray_here: Any) -> None:
    asked = [*rows(), {"id": 40, "text": f"{canary('poison')} KILL"}]
    manifest = place.run(
        source=place.jsonl(*asked),
        **functions(place, '{"length": len(str(response))}'),
        engine_args={"kill_pattern": "KILL"},
        max_error_fraction=1.0,
        report_samples=0,
        replicas=1,
    )
    assert manifest.counts.errors_by_step == {"template": 10, "engine": 1, "postprocess": 10}
    assert manifest.reasons_by_step == {
        "template": "the row makes no request (KeyError)",
        "engine": "the process of the engine and of prompt_function dies of this row, alone in it",
        "postprocess": "no columns could be made of the response (KeyError)",
    }
    assert found_in(shown(place)) == []
    letters = rows_of(LocalFolder(str(place.out)), "dead_letter")
    assert f"KeyError: '{canary('text')} 1'" in letters
    assert canary("poison") in letters


def test_a_refusal_of_what_a_function_returned_quotes_nothing(place: Place, ray_here: Any) -> None:
    made = '{"column": row["text"] if row["id"] % 2 else row["id"]}'
    given = {**functions(place, made), "max_error_fraction": 1.0, "report_samples": 0}
    failed = place.refused(source=place.jsonl(*rows()), **given)
    assert failed.failure_class is FailureClass.USER_ERROR, failed
    assert failed.message.startswith("postprocess: column 'column' has values in row 0 and in row 3, which ")
    assert found_in(shown(place)) == []


def test_lines_that_fail_in_the_engine_are_not_printed(place: Place, ray_here: Any) -> None:
    lines = [line(canary(str(number)), chat(f"BREAK {canary('text')}")) for number in range(20)]
    failed = place.refused(
        source=place.jsonl(*map(json.dumps, lines)),
        **IN_AND_OUT,
        engine_args={"fail_pattern": "BREAK"},
        max_errors=3,
        report_samples=0,
    )
    assert failed.failure_class is FailureClass.TOO_MANY_ERRORS
    assert "the echo engine fails such requests" in failed.message
    assert place.printed
    assert found_in(shown(place)) == []
