# SPDX-License-Identifier: Apache-2.0
"""From one attempt or night to the next, without engines: which rows are asked again, and their origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.reuse.reuse import parts_of_task
from airflow_provider_raybatch.job.reuse.row_keys import ranges_for
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.storage.folder import LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.attempts import GREEDY, Attempt
from tests.support.faulty_s3 import FaultyS3
from tests.support.responses import DAY, Shop

pytestmark = pytest.mark.usefixtures("ranges")

SAMPLED: dict[str, Any] = {"sampling": {"temperature": 1}}


@pytest.fixture
def store(tmp_path: Path) -> ResponseStore:
    return ResponseStore(LocalFolder(str(tmp_path / "store")), lambda notice: None)


class TestRegenerate:
    def test_retry_over_a_changed_input_keeps_paid_responses(self, tmp_path: Path) -> None:
        Attempt(tmp_path, ["a", "b"], on_clear="regenerate").answer([0, 1])
        assert Attempt(tmp_path, ["a", "b", "c"], on_clear="regenerate", number=1).asked == [2]
        assert Attempt(tmp_path, ["a", "b", "c"], on_clear="regenerate", token="other").asked == [0, 1, 2]


class TestResume:
    """A retry over the same input reads its missing rows, and parts that may hold their answers."""

    TEXTS: ClassVar[list[str]] = ["a", "b", "a", "c", "b", "a"]

    def first(self, root: Path, answered: Sequence[int], **fields: Any) -> Attempt:
        first = Attempt(root, self.TEXTS, **fields)
        first.write_parts()
        return first.answer(answered) if answered else first

    def test_no_key_is_made_and_no_part_is_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.first(tmp_path, [0], **SAMPLED).asked == [0, 1, 2, 3, 4, 5]
        read = _opened(monkeypatch)
        again = Attempt(tmp_path, self.TEXTS, number=1, **SAMPLED)
        assert (again.asked, again.events) == ([1, 2, 3, 4, 5], [])
        assert again.reuse_plan.repetitions == {2: 1, 4: 1, 5: 2}
        assert len(read) == ranges_for(len(self.TEXTS))
        assert all(path.endswith("repeats.index") for path in read)

    def test_s3_costs_one_listing_and_a_request_per_gapped_part(
        self, tmp_path: Path, proxy: FaultyS3
    ) -> None:
        texts = list("abcdefghijklmnop")
        folder = S3Folder(proxy.api.new_bucket(), "out", proxy.api.credentials)

        def attempt(number: int) -> Attempt:
            return Attempt(tmp_path, texts, None, folder, number=number, **SAMPLED)

        first = attempt(0)
        first.write_parts()
        first.answer(list(range(0, 16, 2)))  # more gaps than its name can list
        attempt(1).answer([1, 3, 9])  # its name lists all
        before = len(proxy.calls)
        assert attempt(2).asked == [5, 7, 11, 13, 15]
        calls = [call.target for call in proxy.calls[before:]]
        asked = set(calls)
        assert len(calls) <= len(asked) + 2  # obstore may repeat one, on a busy machine
        kinds = ["listing" if "list-type" in target else target.rpartition(".")[2] for target in asked]
        assert Counter(kinds) == {"index": ranges_for(len(texts)), "listing": 1, "parquet": 1}

    def test_rows_keep_their_keys_where_samples_are_asked_for(self, tmp_path: Path) -> None:
        self.first(tmp_path, [0, 1, 5], **SAMPLED)
        again = Attempt(tmp_path, self.TEXTS, number=1, **SAMPLED)
        assert (again.asked, again.events) == ([2, 3, 4], [])
        assert again.reuse_plan.repetitions == {2: 1, 4: 1}
        again.answer([2, 3, 4])
        keys = [
            key
            for part in parts_of_task(again.job)
            for key in pq.read_table(again.job.folder.open(part.path))["key"].to_pylist()
        ]
        assert len(set(keys)) == len(self.TEXTS)

    def test_first_attempt_makes_keys_where_they_are_needed(
        self, tmp_path: Path, store: ResponseStore
    ) -> None:
        """Equal greedy requests meet while the job runs; of sampled ones, each has a key of its own."""

        def said(name: str, store: ResponseStore | None = None, **sampling: Any) -> list[str]:
            return [one.message for one in Attempt(tmp_path / name, self.TEXTS, store, **sampling).events]

        assert said("one", **SAMPLED) == ["checking 6 rows for equal requests"]
        assert said("two", sampling=GREEDY) == []
        assert said("three", store, sampling=GREEDY) == ["checking 6 rows for reusable answers"]

    def test_only_the_missing_rows_are_looked_up_in_a_store(
        self, tmp_path: Path, store: ResponseStore
    ) -> None:
        self.first(tmp_path / "one", [0, 1], **SAMPLED)
        night = Attempt(tmp_path / "two", self.TEXTS, **SAMPLED)
        night.answer([3]).store_in(store)
        again = Attempt(tmp_path / "one", self.TEXTS, store, number=1, **SAMPLED)
        assert again.asked == [2, 4, 5]
        assert [phase.message for phase in again.events] == ["checking 4 rows for reusable answers"]

    @pytest.mark.parametrize("sampling", [GREEDY, {"temperature": 1}], ids=["greedy", "sampled"])
    def test_parts_of_another_input_are_searched_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, int]
    ) -> None:
        Attempt(tmp_path, ["a", "x"], sampling=sampling).answer([0, 1])
        first = self.first(tmp_path, [], number=1, sampling=sampling)
        left = [1, 3, 4] if sampling == GREEDY else [1, 2, 3, 4, 5]
        assert first.asked == left
        read = _opened(monkeypatch)
        assert Attempt(tmp_path, self.TEXTS, number=2, sampling=sampling).asked == left
        assert read
        assert all(path.startswith(first.run_folder) for path in read)
        # New parts are searched: another attempt may have worked on the other input meanwhile.
        Attempt(tmp_path, ["c", "x", "x"], number=3, sampling=sampling).answer([0])
        left.remove(3)
        assert Attempt(tmp_path, self.TEXTS, number=4, sampling=sampling).asked == left

    def test_a_larger_limit_makes_all_keys_again(self, tmp_path: Path) -> None:
        few = {"source": [str(tmp_path / "in.jsonl")], "limit": 2}
        first = Attempt(tmp_path, self.TEXTS, **few, **SAMPLED)
        first.write_parts()
        first.answer([0, 1])
        all_rows = Attempt(tmp_path, self.TEXTS, number=1, **SAMPLED)
        assert all_rows.asked == [2, 3, 4, 5]
        assert all_rows.reuse_plan.repetitions == {2: 1, 4: 1, 5: 2}

    @pytest.mark.parametrize("damage", ["not Parquet", "empty", "cut", "flipped"])
    def test_a_damaged_search_is_made_again(self, tmp_path: Path, damage: str) -> None:
        """Arrow raises whatever it likes for a damaged file, or believes it."""
        first = self.first(tmp_path, [0, 1], **SAMPLED)
        kept = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*repeats.index")}
        assert len(kept) == ranges_for(len(self.TEXTS))
        size = min(map(len, kept.values()))
        for place in range(5, size, size // 8) if damage == "flipped" else [size // 2]:
            for path, content in kept.items():
                flipped = content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
                path.write_bytes(
                    {
                        "not Parquet": b"PAR1, or not",
                        "empty": b"",
                        "cut": content[:place],
                        "flipped": flipped,
                    }[damage]
                )
            again = Attempt(tmp_path, self.TEXTS, number=1, **SAMPLED)
            assert again.reuse_plan.repetitions == {2: 1, 4: 1, 5: 2}
            assert again.reuse_plan.search is not None
        again.write_parts()
        assert Attempt(tmp_path, self.TEXTS, number=2, **SAMPLED).reuse_plan.search is None
        assert first.job.part_folder != again.job.part_folder


def _rows(attempt: Attempt, written: Sequence[Part]) -> list[dict[str, Any]]:
    return [row for part in written for row in pq.read_table(attempt.job.folder.open(part.path)).to_pylist()]


def _opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the paths of the ledger's files that are read from now on."""
    read: list[str] = []

    def counting(own: Callable[..., Any]) -> Callable[..., Any]:
        def counted(self: LocalFolder, path: str, *arguments: Any) -> Any:
            if path.startswith("_raybatch/") and path not in read:
                read.append(path)
            return own(self, path, *arguments)

        return counted

    for name in ("open", "read", "read_range"):
        monkeypatch.setattr(LocalFolder, name, counting(getattr(LocalFolder, name)))
    return read


class TestFromNightToNight:
    def test_what_was_carried_over_a_changed_input_is_stored(
        self, tmp_path: Path, store: ResponseStore
    ) -> None:
        Attempt(tmp_path / "one", ["a", "b"], sampling=GREEDY).answer([0, 1])
        again = Attempt(tmp_path / "one", ["a", "b", "c"], number=1, sampling=GREEDY)
        again.write_parts()
        again.answer(again.asked).store_in(store)
        assert Attempt(tmp_path / "two", ["a", "b", "c"], store, sampling=GREEDY).asked == []

    def test_driver_with_a_reused_id_stores_its_rows_too(self, tmp_path: Path, store: ResponseStore) -> None:
        Attempt(tmp_path / "one", ["a", "b"], sampling=GREEDY).answer([0]).store_in(store)
        Attempt(tmp_path / "one", ["a", "b"], sampling=GREEDY).answer([1]).store_in(store)
        night = Attempt(tmp_path / "two", ["a", "b"], store, sampling=GREEDY)
        assert night.asked == []
        rows = _rows(night, night.write_parts())
        assert [row["paid_by"] for row in rows] == ["raybatch-x-0"] * 2

    def test_a_stored_answer_stays_one_when_it_is_carried(self, tmp_path: Path, store: ResponseStore) -> None:
        Attempt(tmp_path / "one", ["a"], sampling=GREEDY).answer([0]).store_in(store)
        Attempt(tmp_path / "two", ["a"], store, number=1, sampling=GREEDY).write_parts()
        later = Attempt(tmp_path / "two", ["a", "b"], store, number=2, sampling=GREEDY)
        table = pq.read_table(later.job.folder.open(later.write_parts()[0].path))
        assert table.select(["origin", "paid_by"]).to_pylist() == [
            {"origin": "stored", "paid_by": "raybatch-x-0"}
        ]

    @pytest.mark.parametrize("sampling", [GREEDY, {"temperature": 1}], ids=["greedy", "sampled"])
    def test_rows_whose_answer_is_gone_are_asked(
        self, tmp_path: Path, store: ResponseStore, sampling: dict[str, int]
    ) -> None:
        texts = ["a", "b", "c", "a", "b", "a"]
        first = Attempt(tmp_path / "first", texts, sampling=sampling)
        first.answer(first.asked).store_in(store)
        night = Attempt(tmp_path / "night", texts, store, sampling=sampling)
        assert night.asked == []
        for path in Path(store.folder.uri).glob("v1/data/**/*.parquet"):
            path.unlink()
        assert night.write_parts() == []
        assert night.reuse_plan.repetitions == ({} if sampling == GREEDY else {3: 1, 4: 1, 5: 2})

    def test_what_expired_does_not_come_back_as_young(self, tmp_path: Path) -> None:
        shop = Shop(LocalFolder(str(tmp_path / "store")))
        store = shop.store(max_age=7 * DAY)
        Attempt(tmp_path / "one", ["a"], store).answer([0]).store_in(store)
        shop.now += 14 * DAY
        assert store.compact().deleted == 1
        Attempt(tmp_path / "one", ["a"], store, token="cleared").store_in(store)
        assert Attempt(tmp_path / "two", ["a"], store).asked == [0]

    def test_an_answer_out_of_the_store_does_not_go_back_as_young(self, tmp_path: Path) -> None:
        shop = Shop(LocalFolder(str(tmp_path / "store")))
        store = shop.store(max_age=7 * DAY)
        Attempt(tmp_path / "one", ["a"], store).answer([0]).store_in(store)
        shop.now += 4 * DAY
        night = Attempt(tmp_path / "two", ["a"], store)
        assert night.write_parts()
        night.store_in(store)
        shop.now += 4 * DAY
        assert Attempt(tmp_path / "three", ["a"], store).asked == [0]

    def test_age_beyond_the_calendar_means_no_limit(self, tmp_path: Path) -> None:
        store = ResponseStore(LocalFolder(str(tmp_path / "store")), lambda notice: None, max_age=1e19)
        Attempt(tmp_path / "one", ["a"], store).answer([0]).store_in(store)
        assert Attempt(tmp_path / "two", ["a"], store).asked == []


@pytest.mark.parametrize("deduplicate", [True, False])
def test_equal_sampled_rows_are_paid_once_if_the_input_changes(tmp_path: Path, deduplicate: bool) -> None:
    fields = {"sampling": {"temperature": 1}, "deduplicate": deduplicate}
    Attempt(tmp_path, ["a", "a", "a"], **fields).answer([0, 1, 2])
    assert Attempt(tmp_path, ["b", "a", "a", "a", "a"], token="cleared", **fields).asked == [0, 4]


def test_non_numeric_temperature_does_not_end_the_job(tmp_path: Path) -> None:
    rows = [{"text": "a", "sampling": {"temperature": "hot"}}, {"text": "b", "sampling": {}}]
    assert Attempt(tmp_path, rows, sampling_column="sampling", sampling=GREEDY).asked == [0, 1]
