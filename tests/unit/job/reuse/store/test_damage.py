# SPDX-License-Identifier: Apache-2.0
"""Damaged files count as missing, and change no answer."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.storage.file import with_footer_checksum
from tests.support.responses import Shop, indexed, sorted_keys, stored, table


@pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_a_damaged_segment_is_left_out_with_a_notice(shop: Shop, content: bytes) -> None:
    shop.store().add("s", [table([1])])
    shop.store().add("t", [table([2])])
    shop.folder.write(indexed("s"), content)
    assert set(shop.answers([1, 2])) == {2}
    assert len(shop.notices) == 1
    assert shop.notices[0].startswith(
        "reuse: 1 segments of the index can't be used; their responses are paid for again (for example, "
        f"{indexed('s')} can't be read ("
    )


def test_a_damaged_segment_is_told_once(shop: Shop) -> None:
    """Keys of a large input come in ranges, and the whole index is read for each."""
    shop.store().add("s", [table([1])])
    shop.folder.write(indexed("s"), b"no parquet")
    store = shop.store()
    for one in (1, 2):
        store.lookup(sorted_keys([one]))
    assert len(shop.notices) == 1


def test_files_of_others_are_left_alone(shop: Shop) -> None:
    shop.store().add("s", [table([1])])
    foreign = pa.BufferOutputStream()
    pq.write_table(pa.table({"key": [1]}), foreign)
    shop.folder.write("v1/index/foreign.parquet", with_footer_checksum(foreign.getvalue().to_pybytes()))
    shop.folder.write("v1/index/README.md", b"hello")
    shop.folder.write("v1/data/s/README.md", b"hello")
    shop.folder.write("other", b"hello")
    assert set(shop.answers([1])) == {1}
    assert len(shop.notices) == 1
    assert "v1/index/foreign.parquet can't be read (it is not a segment of this version)" in shop.notices[0]
    shop.store().compact()
    assert {"other", "v1/index/README.md", "v1/index/foreign.parquet"} <= {
        entry.path for entry in shop.folder.list()
    }


OUTSIDE = f'["{"../../../etc/x.parquet".ljust(len(stored("s")), "1")}"]'.encode()


@pytest.mark.parametrize("files", [OUTSIDE, b"5", b"[5]", b"null", b'{"a": 1}'])
def test_segment_with_something_else_for_its_files(local: Shop, files: bytes) -> None:
    """Also with a path out of the store."""
    local.store().add("s", [table([1])])
    content, names = local.folder.read(indexed("s")), f'["{stored("s")}"]'.encode()
    changed = content.replace(names, files.ljust(len(names)))
    assert changed != content
    local.folder.write(indexed("s"), with_footer_checksum(changed))
    assert local.answers([1]) == {}
    found = "is not the name of a data file" if files == OUTSIDE else f"{indexed('s')} can't be read"
    assert found in local.notices[0]


@pytest.mark.parametrize("content", [None, b"", b"no parquet", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_rows_of_a_lost_or_damaged_data_file_are_misses(shop: Shop, content: bytes | None) -> None:
    shop.store().add("s", [table([1, 2])])
    shop.store().add("t", [table([3])])
    if content is None:
        shop.folder.delete([stored("s")])
    else:
        shop.folder.write(stored("s"), content)
    assert set(shop.answers([1, 2, 3])) == {3}
    assert len(shop.notices) == 1
    assert shop.notices[0].startswith(
        "reuse: 2 stored responses can't be read; what is asked again is paid for "
        f"(for example, {stored('s')} "
    )


@pytest.mark.parametrize("path", [stored("s"), indexed("s")], ids=["data", "index"])
def test_a_flipped_bit_is_found(local: Shop, path: str) -> None:
    """In a footer it renames a column, or ends the process; in the index it may also do no harm."""
    local.store().add("s", [table(range(100))])
    content = bytearray(local.folder.read(path))
    right = local.answers(range(100))
    footer = len(content) - int.from_bytes(content[-8:-4], "little") - 8
    for position in range(0, len(content), 37):
        content[position] ^= 8
        local.folder.write(path, bytes(content))
        found = local.answers(range(100))
        assert found == {} if position >= footer else found.items() <= right.items()
        content[position] ^= 8


@pytest.mark.parametrize(
    ("names", "moved", "found"),
    [([1, 2, 3], [2, 1, 3], [3]), (range(5), [0, 1], [0, 1])],
    ids=["other rows", "fewer rows"],
)
def test_a_row_counts_only_under_its_own_key(
    shop: Shop, names: Sequence[int], moved: list[int], found: list[int]
) -> None:
    """Data was replaced (two attempts wrote it in another order) after the index was written."""
    shop.store().add("s", [table(names)])
    Shop(shop.folder).store().add("t", [table(moved)])
    shop.folder.write(stored("s"), shop.folder.read(stored("t")))
    shop.folder.delete([indexed("t")])
    assert shop.answers(names) == {name: (f"to {name}", "s") for name in found}
    (notice,) = shop.notices
    lost = len(names) - len(found)
    assert notice.startswith(f"reuse: {lost} stored responses can't be read; what is asked again is paid for")
