# SPDX-License-Identifier: Apache-2.0
"""Blocks are taken until they are too many, or too late."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from airflow_provider_raybatch.job.media.bounded import check_size, joined
from airflow_provider_raybatch.job.row import ImageError
from tests.support.image_files import access


def test_no_block_is_taken_after_the_one_that_is_too_many() -> None:
    taken = []

    def blocks() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield b"1234"

    with pytest.raises(ImageError, match="x has more than the 10 bytes"):
        joined(blocks(), "x", access(most_bytes=10), math.inf)
    assert len(taken) == 3


def test_no_block_is_taken_after_the_deadline() -> None:
    blocks = iter([b"1", b"2"])
    with pytest.raises(ImageError, match=r"x did not arrive within the 20 s of image_timeout"):
        joined(blocks, "x", access(), 0.0)
    assert list(blocks) == [b"2"]


def test_exactly_max_image_bytes_pass() -> None:
    check_size(10, "x", access(most_bytes=10))
    assert joined([b"12345", b"67890"], "x", access(most_bytes=10), math.inf) == b"1234567890"
