# SPDX-License-Identifier: Apache-2.0
"""What is damaged counts as not there, and changes no answer."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .responses import Shop, table


@pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_a_damaged_segment_is_left_out_with_a_notice(shop: Shop, content: bytes) -> None:
    shop.store().add("s", [table([1])])
    shop.store().add("t", [table([2])])
    shop.folder.write("v1/index/s-0000.parquet", content)
    assert set(shop.answers([1, 2])) == {2}
    assert len(shop.said) == 1
    assert shop.said[0].startswith(
        "reuse: 1 segments of the index can't be used; their responses are paid for again (for example, "
        "v1/index/s-0000.parquet can't be read ("
    )


def test_half_a_segment(shop: Shop) -> None:
    shop.store().add("s", [table(range(100))])
    shop.folder.write("v1/index/x.parquet", shop.folder.read("v1/index/s-0000.parquet")[:-200])
    assert len(shop.answers(range(100))) == 100
    assert len(shop.said) == 1


def test_files_of_others_are_left_alone(shop: Shop) -> None:
    shop.store().add("s", [table([1])])
    foreign = pa.BufferOutputStream()
    pq.write_table(pa.table({"key": [1]}), foreign)
    shop.folder.write("v1/index/foreign.parquet", foreign.getvalue().to_pybytes())
    shop.folder.write("v1/index/README.md", b"hello")
    shop.folder.write("v1/data/s/README.md", b"hello")
    shop.folder.write("other", b"hello")
    assert set(shop.answers([1])) == {1}
    assert len(shop.said) == 1
    assert "v1/index/foreign.parquet can't be read (it is no segment of this version)" in shop.said[0]
    shop.store().compact()
    assert {"other", "v1/index/README.md", "v1/index/foreign.parquet"} <= {
        entry.path for entry in shop.folder.list()
    }


def test_a_segment_that_points_out_of_the_store(local: Shop) -> None:
    local.store().add("s", [table([1])])
    content = local.folder.read("v1/index/s-0000.parquet")
    name = b"v1/data/s/00000.parquet"
    local.folder.write("v1/index/s-0000.parquet", content.replace(name, b"../../../etc/x.parquet1"))
    assert local.answers([1]) == {}
    assert "is no name of a data file" in local.said[0]


@pytest.mark.parametrize("content", [None, b"", b"no parquet", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_rows_of_a_lost_or_damaged_data_file_are_misses(shop: Shop, content: bytes | None) -> None:
    shop.store().add("s", [table([1, 2])])
    shop.store().add("t", [table([3])])
    if content is None:
        shop.folder.delete(["v1/data/s/00000.parquet"])
    else:
        shop.folder.write("v1/data/s/00000.parquet", content)
    assert set(shop.answers([1, 2, 3])) == {3}
    assert len(shop.said) == 1
    assert shop.said[0].startswith(
        "reuse: 2 stored responses can't be read and are paid for again (for example, "
        "v1/data/s/00000.parquet "
    )


def test_a_flipped_bit_is_found(local: Shop) -> None:
    local.store().add("s", [table(range(100))])
    content = bytearray(local.folder.read("v1/data/s/00000.parquet"))
    right = local.answers(range(100))
    footer = int.from_bytes(content[-8:-4], "little") + 8
    # Pages have checksums, footers have none.
    for position in range(4, len(content) - footer, 37):
        content[position] ^= 8
        local.folder.write("v1/data/s/00000.parquet", bytes(content))
        assert local.answers(range(100)).items() <= right.items()
        content[position] ^= 8


def test_a_row_counts_only_under_its_own_key(shop: Shop) -> None:
    # Data was replaced (two attempts wrote it in another order) after the index was written.
    shop.store().add("s", [table([1, 2, 3])])
    Shop(shop.folder, said=shop.said).store().add("t", [table([2, 1, 3])])
    shop.folder.write("v1/data/s/00000.parquet", shop.folder.read("v1/data/t/00000.parquet"))
    shop.folder.delete(["v1/index/t-0000.parquet"])
    assert shop.answers([1, 2, 3]) == {3: ("to 3", "s")}
    assert shop.said == ["reuse: 2 stored responses can't be read and are paid for again."]


def test_an_index_that_points_past_the_end(local: Shop) -> None:
    local.store().add("s", [table(range(5))])
    local.store().add("t", [table([0, 1])])
    local.folder.write("v1/data/s/00000.parquet", local.folder.read("v1/data/t/00000.parquet"))
    local.folder.delete(["v1/index/t-0000.parquet"])
    assert set(local.answers(range(5))) == {0, 1}
