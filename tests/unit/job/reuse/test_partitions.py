# SPDX-License-Identifier: Apache-2.0
"""Columns of many rows, cut into parts that lie in a temporary file."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.reuse import partitions
from airflow_provider_raybatch.job.reuse.partitions import Partitions


@dataclass(frozen=True)
class Pair:
    KIND: ClassVar[np.dtype[Any]] = np.dtype([("number", "i8"), ("key", "S16")])

    number: npt.NDArray[np.int64]
    key: npt.NDArray[np.bytes_]


def pairs(numbers: list[int]) -> Pair:
    keys = [bytes([one % 256]) * 15 + b"\0" for one in numbers]
    return Pair(np.array(numbers, np.int64), np.array(keys, "S16"))


def shown(pair: Pair) -> list[tuple[int, bytes]]:
    return list(zip(pair.number.tolist(), map(bytes, pair.key.view(("V", 16))), strict=True))


@given(
    st.lists(st.lists(st.integers(0, 1000), max_size=20), max_size=10),
    st.integers(1, 5),
    st.sampled_from([0, 100, 10**6]),
)
def test_each_part_has_its_rows_in_the_order_in_which_they_came(
    batches: list[list[int]], number: int, in_memory: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(partitions, "_MOST_IN_MEMORY", in_memory)
        cut = Partitions(Pair, number)
        for batch in batches:
            cut.add(pairs(batch), np.array(batch, np.int64) % number)
    everything = [one for batch in batches for one in batch]
    assert len(cut) == len(everything)
    for part in range(number):
        wanted = shown(pairs([one for one in everything if one % number == part]))
        assert shown(cut[part]) == wanted
        assert [one for piece in cut.pieces(part) for one in shown(piece)] == wanted


class Full:
    """A file on a full disk."""

    def seek(self, *_: int) -> int:
        return 0

    def write(self, _: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def nowhere() -> NoReturn:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory")


@pytest.mark.parametrize(
    ("file", "why"), [(Full, "No space left on device"), (nowhere, "No usable temporary directory")]
)
def test_a_full_disk_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, file: Callable[[], Full], why: str
) -> None:
    monkeypatch.setattr(partitions, "_MOST_IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "TemporaryFile", file)
    with pytest.raises(RaybatchError, match=r"^TMPDIR: keys of requests do not fit into ") as caught:
        Partitions(Pair, 2).add(pairs([1, 2]), np.array([0, 1]))
    assert caught.value.failure_class is FailureClass.STORAGE
    assert f"({why}); free some space there" in str(caught.value)


def test_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_MOST_IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cut = Partitions(Pair, 2)
    cut.add(pairs([1, 2, 3]), np.array([1, 0, 1]))
    assert list(tmp_path.iterdir()) == []  # the file has no name
    assert cut[1].number.tolist() == [1, 3]
