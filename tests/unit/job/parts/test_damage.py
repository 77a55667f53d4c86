# SPDX-License-Identifier: Apache-2.0
"""Damaged parts are noticed, are not finished, and end one attempt at most; and what is kept of files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.output.schema import footers
from airflow_provider_raybatch.job.parts import reading
from airflow_provider_raybatch.job.parts.ledger import look_back, mark_damaged
from airflow_provider_raybatch.job.parts.part import (
    Part,
    listed,
    outcomes,
    paid_tokens,
    read_between,
    write_all,
)
from airflow_provider_raybatch.job.parts.reading import DamagedPartError, RecentReads
from airflow_provider_raybatch.job.replica.process_parts import LeftParts, stem
from airflow_provider_raybatch.job.row import RowOutcome
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.damage import (
    OF_SIZE,
    Damage,
    cut,
    flipped,
    in_a_page,
    in_the_footer,
    unreadable,
)
from tests.support.publishing import ONE, failure, part, response

RUN = "_raybatch/parts/task/run"
FLIPS = 150


def damage(folder: LocalFolder, one: Part, how: Damage) -> None:
    Path(folder.root, one.path).write_bytes(how(folder.read(one.path)))


def everything(folder: LocalFolder, one: Part) -> tuple[pa.Table, object, object, int]:
    """Return what all readers of parts see of one."""
    table = read_between(folder, one, 0, 10_000)
    return (
        table,
        footers(folder, [one]),
        [array.tolist() for array in outcomes(folder, one)],
        paid_tokens(folder, one),
    )


def test_each_flipped_bit_is_noticed_or_harmless(disk: LocalFolder) -> None:
    """Without checksums, most flips became other texts, and flips in the footer other tokens."""
    chance = random.Random(1)
    rows = [{"n": n, "text": "".join(chance.choices("abcdefgh ", k=30))} for n in range(40)]
    answers = [failure() if n % 7 == 0 else response(chance.choice("abc") * 20) for n in range(40)]
    one = part(disk, rows, answers)
    content, file = disk.read(one.path), Path(disk.root, one.path)
    right = everything(disk, one)
    ends = range(8 * (len(content) - 400), 8 * len(content), 37)
    noticed = 0
    for bit in [*(chance.randrange(8 * len(content)) for _ in range(FLIPS)), *ends]:
        file.write_bytes(flipped(content, bit))
        try:
            found = everything(disk, one)
        except DamagedPartError:
            noticed += 1
        else:
            assert found[0].equals(right[0], check_metadata=True), bit
            assert found[1:] == right[1:], bit
    assert noticed > 0.9 * (FLIPS + len(ends))


@pytest.mark.parametrize("how", [*OF_SIZE, in_the_footer, unreadable])
def test_a_damaged_part_is_not_finished(disk: LocalFolder, how: Damage) -> None:
    whole, other = part(disk, [{}] * 3), part(disk, [{}] * 2, [failure(), response()], first=3)
    damage(disk, other, how)
    ledger = look_back(disk, RUN, 5)
    assert np.flatnonzero(ledger.good).tolist() == [0, 1, 2]
    assert not ledger.failures.any()
    assert ledger.parts == (whole,)
    assert [one.path for one in ledger.damaged] == [other.path]


def test_all_damaged_parts_are_marked_at_once(disk: LocalFolder) -> None:
    made = [part(disk, [{}] * 3, first=first) for first in (0, 3, 6)]
    for one in made[1:]:
        damage(disk, one, in_a_page)
    mark_damaged(disk, RUN)
    files = disk.list(RUN)
    assert listed(files) == made[:1]
    assert listed(files, damaged=True) == made[1:]


@pytest.mark.parametrize("how", [cut, in_the_footer])
def test_what_a_lost_replica_left_damaged_is_not_finished(disk: LocalFolder, how: Damage) -> None:
    """Other replicas get its rows."""
    folder = f"{RUN}/raybatch-x-0"
    row = pa.table({"n": [1]})
    whole, other = (
        write_all(disk, stem(folder, "process", number), row, [RowOutcome(number, failure())], ONE)[0]
        for number in range(2)
    )
    damage(disk, other, how)
    left = LeftParts(disk)
    left.look_for("process", "actor", None, [folder], frozenset())
    while not (known := list(left.known())):
        left.check()
    assert [one for _, one, *_ in known[0].found.result()] == [whole]


class Failing(LocalFolder):
    def open(self, path: str, size: int | None = None) -> BinaryIO:
        raise OSError(5, "Input/output error")


def test_a_disk_that_fails_marks_nothing(disk: LocalFolder) -> None:
    one = part(disk, [{}] * 3)
    with pytest.raises(StorageError, match=r"can't be read \(\[Errno 5\] Input/output error\)") as raised:
        read_between(Failing(disk.root), one, 0, 9)
    assert not isinstance(raised.value, DamagedPartError)
    assert listed(disk.list(RUN)) == [one]


def test_the_last_used_files_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MOST_KEPT", 5)
    read: list[str] = []

    def got(name: str, content: bytes | None) -> bytes | None:
        return files.get(name, lambda: [read.append(name), content][1])

    files = RecentReads[bytes](len)
    for name in ("a", "b", "a", "c", "a", "b"):
        assert got(name, b"xx") == b"xx"
    assert read == ["a", "b", "c", "b"]
    assert (got("damaged", None), got("damaged", None)) == (None, None)
    assert (got("large", b"x" * 9), got("large", b"")) == (b"x" * 9,) * 2
    assert read[4:] == ["damaged", "large"]
