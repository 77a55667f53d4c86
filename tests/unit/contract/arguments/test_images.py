# SPDX-License-Identifier: Apache-2.0
"""Arguments for images of rows: what they may be, and where they have no effect."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error


def test_one_column_needs_no_list() -> None:
    assert spec(images="photo").images == ["photo"]
    assert spec(images=["front", "back"]).images == ["front", "back"]


def test_prompt_without_placeholders_is_of_its_row_with_images() -> None:
    made = spec(prompt="What does the picture show?", images="photo")
    assert made.column_arguments() == {"photo": "images"}
    assert spec(images=["photo"]).column_arguments() == {"photo": "images", "text": "prompt"}


def test_image_hosts_are_lowered_and_image_timeout_is_seconds() -> None:
    made = spec(image_hosts="Images.Example.com", image_timeout="2.5")
    assert (made.image_hosts, made.image_timeout) == (["images.example.com"], 2.5)


def test_argument_without_effect_or_sense_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


@pytest.mark.parametrize("value", [0, "0", None, "four"])
def test_cache_that_is_off_goes_with_images(value: Any) -> None:
    assert spec(images="a", engine_args={"mm_processor_cache_gb": value}).images == ["a"]
