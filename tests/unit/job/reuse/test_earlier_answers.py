# SPDX-License-Identifier: Apache-2.0
"""Which requests had answers before a job: in whole parts and in the response store, within bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.job.input.table import table_of
from airflow_provider_raybatch.job.parts.part import Part, write_all
from airflow_provider_raybatch.job.reuse import reuse
from airflow_provider_raybatch.job.reuse.reuse import EarlierAnswers, last_of
from airflow_provider_raybatch.job.row import RowOutcome
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import ONE, failure, response
from tests.support.responses import DAY, Shop, digest, table


@pytest.fixture
def disk(tmp_path: Path) -> LocalFolder:
    return LocalFolder(str(tmp_path))


def part(disk: LocalFolder, name: str, *answered: object, failed: tuple[object, ...] = ()) -> Part:
    results: list[tuple[object, Any]] = [(one, response("A")) for one in answered]
    results += [(one, failure()) for one in failed]
    outcomes = [RowOutcome(number, result, key=digest(one)) for number, (one, result) in enumerate(results)]
    (written,) = write_all(disk, f"parts/{name}/0", table_of([{"n": 1}] * len(outcomes)), outcomes, ONE)
    return written


def names_in(answers: EarlierAnswers, *names: object) -> dict[object, str]:
    """Return where each of these names has an answer."""
    by_key = {digest(name): name for name in names}
    found = ((place.path, keys.tobytes()) for place, keys in answers.places())
    return {
        by_key[keys[start : start + 16]]: path
        for path, keys in found
        for start in range(0, len(keys), 16)
        if keys[start : start + 16] in by_key
    }


def test_good_answers_of_whole_parts_are_known(disk: LocalFolder) -> None:
    one, other = part(disk, "one", 1, 2, failed=(3,)), part(disk, "other", 2, 4)
    broken = part(disk, "broken", 5)
    Path(disk.root, broken.path).write_bytes(b"x" * broken.bytes)
    found = names_in(EarlierAnswers(disk, [broken, one, other]), *range(6))
    assert found == {1: one.path, 2: other.path, 4: other.path}


def test_answers_of_the_store_are_known_until_they_expire(disk: LocalFolder, tmp_path: Path) -> None:
    shop = Shop(LocalFolder(str(tmp_path / "store")))
    shop.store().add("old", [table([1])])
    shop.now += 10 * DAY
    shop.store().add("new", [table([2, 3], failed=[3])])
    assert {place.path.split("/")[2] for place, _ in shop.store().keys(9)} == {"old", "new"}
    young = {place.path.split("/")[2]: place for place, _ in shop.store(DAY).keys(9)}
    assert young.keys() == {"new"}
    (row,) = young["new"].read(shop.folder).to_pylist()
    assert (row["key"], row["output"]["response"], young["new"].paid_by) == (digest(2), "to 2", "new")
    assert names_in(EarlierAnswers(disk, store=shop.folder), 1, 2, 3).keys() == {1, 2}


def test_the_last_parts_count_where_there_are_many(
    disk: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "_MOST_KEYS", 3)
    parts = [part(disk, str(number), number, number + 10) for number in range(3)]
    assert last_of(parts) == parts[2:]
    assert last_of([]) == []
    shop = Shop(LocalFolder(str(tmp_path / "store")))
    shop.store().add("one", [table([7])])
    assert 7 in names_in(EarlierAnswers(disk, last_of(parts), shop.folder), 7)
    full = [*last_of(parts), part(disk, "last", 8)]
    assert names_in(EarlierAnswers(disk, full, shop.folder), 7, 8).keys() == {8}
