# SPDX-License-Identifier: Apache-2.0
"""A user's function that ends its process is told by its name, wherever a task of the job calls it."""

from __future__ import annotations

from typing import Any

import pytest

from .place import Case, Place, assert_nothing_happened, assert_one_sentence, function

ENDS = """
import os
def make(row, response=None):
    if row["id"] == {row}: os._exit({code})
    return "x"
"""


@pytest.mark.turn(0, 4)
def test_in_the_preflight(place: Place, ray_here: Any) -> None:
    given = function(place, ENDS.format(row=0, code=0))
    expected = f"prompt_function: {given['prompt_function']!r} ended the process"
    assert_one_sentence(place.refused(**given), Case("", lambda _: {}, (expected, "raise an exception")))
    assert_nothing_happened(place)


@pytest.mark.turn(6)
def test_while_keys_are_made(place: Place, ray_here: Any) -> None:
    given = function(place, ENDS.format(row=1200, code=1))
    source = place.jsonl(*({"id": number, "text": "x"} for number in range(1300)))
    failed = place.refused(source=source, deduplicate=True, **given)
    expected = f"prompt_function: {given['prompt_function']!r} ended the process"
    assert_one_sentence(failed, Case("", lambda _: {}, (expected, "raise an exception")))


@pytest.mark.turn(3, 7)
def test_while_the_dataset_is_published(place: Place, ray_here: Any) -> None:
    (path,) = function(place, ENDS.format(row=5, code=1)).values()
    failed = place.refused(postprocess=path)
    expected = f"postprocess: {path!r} ended the process"
    assert_one_sentence(failed, Case("", lambda _: {}, (expected, "raise an exception")))
