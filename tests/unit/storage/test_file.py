# SPDX-License-Identifier: Apache-2.0
"""A flipped bit is found wherever it is, and so is a file that was cut."""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.storage.file import (
    checked,
    checked_footer,
    with_checksum,
    with_footer_checksum,
)


def parquet(columns: int = 2) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({f"column {number}": [number] for number in range(columns)}), buffer)
    return buffer.getvalue()


def footer_of(content: bytes) -> bytes:
    return checked_footer(io.BytesIO(content))


def is_found(content: bytes, read: Callable[[bytes], bytes]) -> bool:
    try:
        read(content)
    except ValueError:
        return True
    return False


def test_each_flipped_bit_of_a_document_is_found() -> None:
    content = with_checksum(b"some text")
    assert checked(content) == b"some text"
    flipped = [content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :] for at in range(25)]
    cut = [content[:length] for length in range(25)]
    assert all(is_found(one, checked) for one in [*flipped, *cut])


def test_each_flipped_bit_of_a_footer_is_found() -> None:
    content = with_footer_checksum(parquet())
    length = len(footer_of(content)) + 16
    assert len(content) > length > 100
    for place in range(1, length + 1):
        flipped = bytearray(content)
        flipped[-place] ^= 1 << place % 8
        assert is_found(bytes(flipped), footer_of), place
        assert is_found(content[:-place], footer_of), place
    assert is_found(b"", footer_of)
    assert is_found(parquet(), footer_of)


@pytest.mark.parametrize("columns", [1, 2000], ids=["small", "more than one request reads"])
def test_the_file_stays_parquet(columns: int) -> None:
    content = with_footer_checksum(parquet(columns))
    footer = footer_of(content)
    assert (len(footer) > 64 * 1024) == (columns == 2000)
    assert pq.read_table(io.BytesIO(content)).num_columns == columns
    metadata = pq.read_metadata(pa.BufferReader(footer))
    assert pq.ParquetFile(io.BytesIO(content), metadata=metadata).read().num_columns == columns


class LongText(io.RawIOBase):
    """Three GiB of JSON lines, which are nowhere, and the most that one read has asked for."""

    def __init__(self) -> None:
        self.size, self.at, self.most = 3 * 2**30, 0, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self.at = offset + (self.size if whence == io.SEEK_END else 0)
        return self.at

    def read(self, size: int = -1, /) -> bytes:
        wanted = self.size - self.at if size < 0 else size
        self.most = max(self.most, wanted)
        return (b'{"a": "0"}\n' * 6000)[-wanted:]


def test_of_a_file_that_is_no_parquet_only_the_end_is_read() -> None:
    """The length of its footer would be 546 MiB; sixteen files are looked at side by side."""
    text = LongText()
    with pytest.raises(ValueError, match="it does not end as Parquet does"):
        checked_footer(text, needed=False)
    assert text.most <= 64 * 1024
