# SPDX-License-Identifier: Apache-2.0
"""Faults in other processes than the driver's: a function that ends its process, and a damaged file."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.bad_inputs import Place, assert_one_sentence
from tests.support.http_server import Handler, listening

ENDS = """
import os
def make(row, response=None):
    if row["id"] == {row}: os._exit(1)
    return "x"
"""


@pytest.mark.parametrize(
    ("argument", "row", "rows"),
    [
        pytest.param("prompt_function", 0, 20, id="in the preflight"),
        pytest.param("prompt_function", 1200, 1300, id="while keys are made"),
        pytest.param("postprocess", 5, 20, id="while the dataset is published"),
    ],
)
def test_a_function_that_ends_its_process_is_named(
    place: Place, ray_here: Any, argument: str, row: int, rows: int
) -> None:
    path = place.function(ENDS.format(row=row))
    source = place.jsonl(*({"id": number, "text": "x"} for number in range(rows)))
    failed = place.refused(source=source, **{argument: path})
    assert_one_sentence(failed, f"{argument}: {path!r} ended the process", "raise an exception")
    if row == 0:
        place.assert_nothing_happened()


class Answers(Handler):
    """Answers each request alike."""

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        self.body()
        answer = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
        self.send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})


@pytest.mark.thorough("a fault while Ray Data LLM reads; Ray repeats it for half a minute")
def test_a_function_that_ends_a_task_of_ray_data_is_named(place: Place, ray_here: Any) -> None:
    """By itself, Ray Data would repeat its task for ever."""
    path = place.function(ENDS.format(row=1200))
    source = place.jsonl(*({"id": number, "text": "x"} for number in range(1300)))
    with listening(Answers) as port:
        failed = place.refused(
            source=source,
            engine="ray_data_llm",
            processor={"config": "HttpRequestProcessorConfig", "url": f"http://127.0.0.1:{port}/"},
            deduplicate=False,
            sampling={"temperature": 0},
            max_restarts=1,
            no_progress_timeout=60,
            prompt_function=path,
        )
    assert_one_sentence(failed, f"prompt_function: {path!r} ended the process", "raise an exception")


def test_damaged_pages_end_the_job_for_good(place: Place, ray_here: Any) -> None:
    """The replica that reads them says what the driver's last event says."""
    buffer = io.BytesIO()
    texts = [f"row {number} " * 5 for number in range(3000)]
    pq.write_table(pa.table({"text": texts}), buffer, row_group_size=1500)
    content = bytearray(buffer.getvalue())
    last = pq.ParquetFile(buffer).metadata.row_group(1).column(0)
    content[last.data_page_offset + 100 : last.data_page_offset + 160] = b"\xff" * 60
    failed = place.refused(source=place.file("x.parquet", bytes(content)), deduplicate=False)
    assert_one_sentence(failed, "x.parquet is damaged, column 'text' of row group 1 can't be decoded (")
