# SPDX-License-Identifier: Apache-2.0
"""Arrow types that columns of images have."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.media.values import holds_bytes, may_hold_images

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CONTENT = [pa.binary(), pa.large_binary(), pa.binary(4), STRUCT]
REFERENCES = [pa.string(), pa.large_string(), pa.struct([("path", pa.string())]), pa.null()]
OTHERS = [pa.int64(), pa.bool_(), pa.float32(), pa.struct([("x", pa.binary())]), pa.timestamp("s")]


@pytest.mark.parametrize("kind", [*CONTENT, *map(pa.list_, CONTENT), pa.large_list(STRUCT)], ids=str)
def test_content_is_told_from_references(kind: pa.DataType) -> None:
    assert holds_bytes(kind)
    assert may_hold_images(kind)


@pytest.mark.parametrize("kind", [*REFERENCES, *map(pa.list_, REFERENCES)], ids=str)
def test_references_are_images_without_bytes(kind: pa.DataType) -> None:
    assert not holds_bytes(kind)
    assert may_hold_images(kind)


@pytest.mark.parametrize("kind", [*OTHERS, *map(pa.list_, OTHERS), pa.list_(pa.list_(STRUCT))], ids=str)
def test_numbers_and_junk_are_no_images(kind: pa.DataType) -> None:
    assert not holds_bytes(kind)
    assert not may_hold_images(kind)
