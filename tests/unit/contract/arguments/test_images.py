# SPDX-License-Identifier: Apache-2.0
"""Arguments for images of rows: what they may be, and where they have no effect."""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"images": ["a", "b", "a"]}, "images: 'a' is named twice; name each column once."),
        ({"images": [""]}, "images: a name of a column is empty; name the columns that hold images."),
        ({"keep_images": True}, "keep_images: it has no effect without images; name their columns, or"),
        ({"image_roots": ["photos"]}, "image_roots: 'photos' is relative"),
        ({"image_roots": ["https://a.com/x"]}, "image_roots: 'https://a.com/x' has the scheme 'https'; use"),
        ({"image_roots": "/data/*"}, "image_roots: '/data/*' has a wildcard; name the folder above it."),
        ({"image_hosts": ["https://a.com"]}, "image_hosts: 'https://a.com' is not the name of a host; write"),
        ({"image_hosts": ["a.com:8443"]}, "image_hosts: 'a.com:8443' is not the name of a host"),
        ({"image_timeout": 0}, "image_timeout: it must be more than 0, but it is 0"),
        ({"max_image_bytes": 0}, "max_image_bytes: it must be at least 1, but it is 0."),
        (
            {"images": "a", "engine": "ray_data_llm", "model": "m"},
            "images: engine 'ray_data_llm' takes no images from here; use engine 'vllm', or remove them.",
        ),
        (
            {"images": "a", "on_overlong": "truncate"},
            "images: on_overlong='truncate' cuts texts until the prompt fits, before the room of its images "
            "is known; remove one of the two.",
        ),
        (
            {"images": "a", "engine_args": {"mm_processor_cache_gb": 4}},
            "images: engine_args has mm_processor_cache_gb 4, a cache that needs requests in the order in "
            "which they were processed, and here they overtake each other; leave it out.",
        ),
        ({"images": "a", "model_task": "embed"}, "images: model_task 'embed' takes no images; remove them."),
        (
            {"image_roots": ["/a"], "model_task": "classify"},
            "image_roots: it has no effect with model_task 'classify', which takes no images; remove it.",
        ),
        (
            {"images": "a", "format": "openai_batch", "prompt": None},
            "images: it has no effect with format 'openai_batch': the messages of each line have their "
            "images, as 'data:' URIs; remove it.",
        ),
    ],
)
def test_argument_without_effect_or_sense_is_refused(fields: dict[str, Any], sentence: str) -> None:
    assert spec_error(**fields).startswith(sentence)


@pytest.mark.parametrize("value", [0, "0", None, "four"])
def test_cache_that_is_off_goes_with_images(value: Any) -> None:
    assert spec(images="a", engine_args={"mm_processor_cache_gb": value}).images == ["a"]
