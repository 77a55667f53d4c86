# SPDX-License-Identifier: Apache-2.0
"""What was paid for is found again, by its own key only, and nothing else is."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job import key_array
from airflow_provider_raybatch.job.response_store import data, segment
from airflow_provider_raybatch.job.response_store.files import in_order
from airflow_provider_raybatch.job.response_store.index import matches
from airflow_provider_raybatch.job.storage.errors import StorageError
from airflow_provider_raybatch.job.storage.folder import Folder, LocalFolder, S3Folder

from ...s3_server import S3Server
from .responses import DAY, START, Faulty, Shop, raising, sorted_keys, table, write_much


@pytest.fixture
def shop(folder: Folder) -> Shop:
    return Shop(folder)


@pytest.fixture
def local(disk: LocalFolder) -> Shop:
    return Shop(disk)


class TestHits:
    def test_an_empty_store_has_none(self, shop: Shop) -> None:
        assert shop.answers(range(3)) == {}
        assert shop.answers([]) == {}
        assert shop.said == []

    def test_what_was_stored_is_found_with_its_payer_and_nothing_else(self, shop: Shop) -> None:
        assert shop.store().add("first", [table(range(10)), table(range(10, 15))]) == 15
        assert shop.store().add("second", [table(range(15, 20))]) == 5
        assert shop.answers(range(5, 25)) == {
            name: (f"to {name}", "first" if name < 15 else "second") for name in range(5, 20)
        }
        assert shop.said == []

    def test_failures_are_not_stored(self, shop: Shop) -> None:
        assert shop.store().add("s", [table(range(4), failed=[1, 3])]) == 2
        assert set(shop.answers(range(4))) == {0, 2}

    def test_the_newest_answer_wins(self, shop: Shop) -> None:
        shop.store().add("older", [table(range(4), "old")])
        shop.now += DAY
        shop.store().add("newer", [table([1, 2], "new")])
        shop.now -= 2 * DAY
        shop.store().add("oldest", [table(range(5), "oldest")])
        assert shop.answers(range(5)) == {
            0: ("old 0", "older"),
            1: ("new 1", "newer"),
            2: ("new 2", "newer"),
            3: ("old 3", "older"),
            4: ("oldest 4", "oldest"),
        }

    def test_a_key_that_was_stored_twice_by_one_submission_comes_once(self, shop: Shop) -> None:
        shop.store().add("s", [table([1, 1, 2])])
        assert set(shop.answers([1, 2])) == {1, 2}

    def test_a_submission_without_good_rows(self, shop: Shop) -> None:
        assert shop.store().add("s", []) == 0
        assert shop.store().add("t", [table([1], failed=[1])]) == 0
        assert shop.answers([1]) == {}
        assert shop.store().holds("s")

    def test_rows_cross_files_row_groups_and_segments(
        self, local: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data, "ROWS_PER_FILE", 70)
        monkeypatch.setattr(data, "ROWS_PER_GROUP", 20)
        monkeypatch.setattr(segment, "ROWS_PER_GROUP", 30)
        monkeypatch.setattr("airflow_provider_raybatch.job.response_store.store.ROWS_PER_SEGMENT", 100)
        local.store().add("s", [table(range(333)), table(range(333, 340)), table(range(340, 500))])
        assert len(local.folder.list("v1/data/s")) == 500 // 70 + 1 + 1
        assert len(local.folder.list("v1/index")) == 5
        assert local.answers(range(3, 600, 7)) == {name: (f"to {name}", "s") for name in range(3, 500, 7)}

    def test_large_responses_make_small_files_and_groups(
        self, local: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data, "_BYTES_PER_FILE", 50_000)
        monkeypatch.setattr(data, "_BYTES_PER_GROUP", 10_000)
        local.store().add("s", [table(range(50), "x" * 1000)])
        assert len(local.folder.list("v1/data/s")) > 3
        tables = list(local.store().read(local.store().lookup(sorted_keys(range(50)))))
        assert sum(one.num_rows for one in tables) == 50
        assert all(one.nbytes < 20_000 for one in tables)

    def test_responses_stored_before_a_field_was_added(self, local: Shop) -> None:
        with pytest.MonkeyPatch.context() as patch:
            today = data.output_type
            patch.setattr(data, "output_type", lambda _: pa.struct([*list(today(True))[:2], ("old", "int8")]))
            old = pa.array([{"response": "r", "finish_reason": "stop", "old": 1}], data.output_type(True))
            local.store().add("s", [table([1]).set_column(1, "output", old)])
        found = pa.concat_tables(local.store().read(local.store().lookup(sorted_keys([1]))))
        assert found["output"].type == data.output_type(True)
        assert found["output"].to_pylist() == [
            {
                "response": "r",
                "finish_reason": "stop",
                "input_tokens": None,
                "cached_tokens": None,
                "output_tokens": None,
                "completions": None,
            }
        ]

    def test_rows_of_another_shape_are_refused(self, local: Shop) -> None:
        with pytest.raises(ValueError, match="add: columns"):
            local.store().add("s", [table([1]).drop_columns(["key"])])
        with pytest.raises(ValueError, match="add: columns"):
            local.store().add("s", [table([1]).set_column(0, "key", pa.array([b"x"]))])

    def test_keys_must_be_sorted_and_each_once(self, local: Shop) -> None:
        keys = sorted_keys(range(3))
        for wrong in (keys[::-1], keys[[0, 0, 1]]):
            with pytest.raises(ValueError, match="sorted"):
                local.store().lookup(wrong)


class TestKeys:
    @given(
        st.lists(
            st.binary(min_size=16, max_size=16) | st.sampled_from([bytes(16), b"a" + bytes(15), b"a" * 16])
        )
    )
    def test_trailing_nul_bytes_are_part_of_a_key(self, keys: list[bytes]) -> None:
        column = pa.array(keys, pa.binary(16))
        there = np.unique(key_array.from_arrow(column))
        assert key_array.to_arrow(there).to_pylist() == sorted(set(keys))
        assert key_array.from_arrow(column.slice(1)).tobytes() == b"".join(keys[1:])
        high, low = key_array.halves(there)
        whole = [int(one) << 64 | int(other) for one, other in zip(high, low, strict=True)]
        assert whole == [int.from_bytes(key, "big") for key in sorted(set(keys))]

    @given(st.sets(st.integers(0, 30)), st.lists(st.integers(0, 30)))
    def test_all_pairs_of_equal_keys_are_matched(self, wanted: set[int], there: list[int]) -> None:
        # Seven first halves only, so that most comparisons are decided by the second.
        def keys(numbers: list[int]) -> key_array.Keys:
            return np.frombuffer(b"".join(b"%08d%08d" % divmod(n, 5) for n in numbers), dtype="S16")

        one, other = sorted(wanted), sorted([*there, 31])
        position, index = matches(key_array.halves(keys(one)), keys(other))
        assert sorted(zip(position.tolist(), index.tolist(), strict=True)) == [
            (i, j) for i, key in enumerate(one) for j, found in enumerate(other) if key == found
        ]

    def test_nulls_and_other_types_are_refused(self) -> None:
        for wrong in (pa.array([None], pa.binary(16)), pa.array([b"x" * 16])):
            with pytest.raises(ValueError, match="key: a column"):
                key_array.from_arrow(wrong)


class TestExpiry:
    def test_a_reader_may_want_younger_ones_than_there_are(self, shop: Shop) -> None:
        shop.store().add("s", [table([1])])
        shop.now += 10 * DAY
        assert shop.answers([1], max_age=9 * DAY) == {}
        assert set(shop.answers([1], max_age=11 * DAY)) == {1}
        assert set(shop.answers([1])) == {1}

    def test_what_was_stored_for_some_time_expires_for_all(self, shop: Shop) -> None:
        shop.store(max_age=2 * DAY).add("s", [table([1])])
        shop.now += 2 * DAY - 1
        assert set(shop.answers([1])) == {1}
        shop.now += 1
        assert shop.answers([1]) == {}

    def test_an_older_answer_that_lives_longer_counts_again(self, shop: Shop) -> None:
        shop.store().add("long", [table([1], "old")])
        shop.now += DAY
        shop.store(max_age=DAY).add("short", [table([1], "new")])
        assert shop.answers([1]) == {1: ("new 1", "short")}
        shop.now += 2 * DAY
        assert shop.answers([1]) == {1: ("old 1", "long")}


class TestAdding:
    def test_a_repeated_add_changes_nothing(self, shop: Shop) -> None:
        shop.store().add("s", [table(range(5))])
        before = shop.folder.list()
        shop.now += DAY
        assert shop.store().holds("s")
        assert shop.store().add("s", [table(range(5), "again")]) == 0
        assert shop.folder.list() == before

    @pytest.mark.parametrize("word", ["v1/data/s/00000", "v1/data/s/00001", "v1/index/", "_whole"])
    def test_an_add_that_broke_off_is_finished_by_its_repetition(
        self, folder: Folder, word: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data, "ROWS_PER_FILE", 10)
        shop = Shop(Faulty(folder, word, raising("write")))
        with pytest.raises(StorageError, match=r"^reuse: "):
            shop.store().add("s", [table(range(25))])
        again = Shop(folder)
        assert not again.store().holds("s")
        # Whatever is visible of the half one is right.
        assert again.answers(range(25)).items() <= {n: (f"to {n}", "s") for n in range(25)}.items()
        assert again.store().add("s", [table(range(25))]) == 25
        assert again.answers(range(30)) == {n: (f"to {n}", "s") for n in range(25)}
        report = again.store().report()
        assert (report.rows, report.data_files, report.segments) == (25, 3, 1)

    def test_data_without_an_index_is_no_hit(self, folder: Folder) -> None:
        with pytest.raises(StorageError):
            Shop(Faulty(folder, "v1/index/", raising("write"))).store().add("s", [table([1])])
        assert Shop(folder).answers([1]) == {}

    def test_many_writers_at_once_lose_nothing(self, tmp_path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        writers = [context.Process(target=write_much, args=(str(tmp_path), number)) for number in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(240)
            assert writer.exitcode == 0
        shop = Shop(LocalFolder(str(tmp_path)))
        names = [*range(4 * 600), *(f"shared {n}" for n in range(10))]
        found = shop.answers(names)
        assert set(found) == set(names)
        assert all(found[n] == (f"to {n}", f"w{n // 600}-{n // 60 % 10}") for n in range(4 * 600))
        assert shop.said == []


class TestDamage:
    @pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1" + b"x" * 100 + b"PAR1"])
    def test_a_damaged_segment_is_left_out_with_a_notice(self, shop: Shop, content: bytes) -> None:
        shop.store().add("s", [table([1])])
        shop.store().add("t", [table([2])])
        shop.folder.write("v1/index/s-0000.parquet", content)
        assert set(shop.answers([1, 2])) == {2}
        assert len(shop.said) == 1
        assert shop.said[0].startswith(
            "reuse: 1 segments of the index can't be used; their responses are paid for again (for example, "
            "v1/index/s-0000.parquet can't be read ("
        )

    def test_half_a_segment(self, shop: Shop) -> None:
        shop.store().add("s", [table(range(100))])
        shop.folder.write("v1/index/x.parquet", shop.folder.read("v1/index/s-0000.parquet")[:-200])
        assert len(shop.answers(range(100))) == 100
        assert len(shop.said) == 1

    def test_files_of_others_are_left_alone(self, shop: Shop) -> None:
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

    def test_a_segment_that_points_out_of_the_store(self, local: Shop) -> None:
        local.store().add("s", [table([1])])
        content = local.folder.read("v1/index/s-0000.parquet")
        name = b"v1/data/s/00000.parquet"
        local.folder.write("v1/index/s-0000.parquet", content.replace(name, b"../../../etc/x.parquet1"))
        assert local.answers([1]) == {}
        assert "is no name of a data file" in local.said[0]

    @pytest.mark.parametrize("content", [None, b"", b"no parquet", b"PAR1" + b"x" * 100 + b"PAR1"])
    def test_rows_of_a_lost_or_damaged_data_file_are_misses(self, shop: Shop, content: bytes | None) -> None:
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

    def test_a_flipped_bit_is_found(self, local: Shop) -> None:
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

    def test_a_row_counts_only_under_its_own_key(self, shop: Shop) -> None:
        # Data was replaced (two attempts wrote it in another order) after the index was written.
        shop.store().add("s", [table([1, 2, 3])])
        Shop(shop.folder, said=shop.said).store().add("t", [table([2, 1, 3])])
        shop.folder.write("v1/data/s/00000.parquet", shop.folder.read("v1/data/t/00000.parquet"))
        shop.folder.delete(["v1/index/t-0000.parquet"])
        assert shop.answers([1, 2, 3]) == {3: ("to 3", "s")}
        assert shop.said == ["reuse: 2 stored responses can't be read and are paid for again."]

    def test_an_index_that_points_past_the_end(self, local: Shop) -> None:
        local.store().add("s", [table(range(5))])
        local.store().add("t", [table([0, 1])])
        local.folder.write("v1/data/s/00000.parquet", local.folder.read("v1/data/t/00000.parquet"))
        local.folder.delete(["v1/index/t-0000.parquet"])
        assert set(local.answers(range(5))) == {0, 1}


class TestStorage:
    @pytest.mark.parametrize(
        ("word", "operation"),
        [("v1/index", "list"), ("v1/index/s", "read_range"), ("v1/data/s", "read_range")],
    )
    def test_a_store_that_does_not_answer_is_an_error_that_may_heal(
        self, disk: LocalFolder, word: str, operation: str
    ) -> None:
        # To go on would be to pay silently for what is there.
        Shop(disk).store().add("s", [table([1])])
        shop = Shop(Faulty(disk, word, raising(operation)))
        with pytest.raises(StorageError, match=rf"^reuse: .*can't {operation} it") as caught:
            shop.answers([1])
        assert caught.value.failure_class is FailureClass.STORAGE
        assert shop.said == []

    def test_preflight_passes_where_the_store_can_be_used(self, shop: Shop) -> None:
        shop.store().prepare()
        shop.store().prepare()
        assert [entry.path for entry in shop.folder.list()] == ["v1/store.json"]

    def test_preflight_refuses_a_store_that_is_not_writable(self) -> None:
        with pytest.raises(StorageError) as caught:
            Shop(LocalFolder("/proc/raybatch")).store().prepare()
        assert caught.value.failure_class is FailureClass.USER_ERROR
        assert str(caught.value).startswith("reuse: /proc/raybatch/v1/store.json: can't write it (")

    def test_preflight_refuses_a_bucket_that_does_not_exist(self, s3_server: S3Server) -> None:
        with pytest.raises(StorageError) as caught:
            Shop(S3Folder("no-such-bucket", "x", s3_server.credentials)).store().prepare()
        assert caught.value.failure_class is FailureClass.USER_ERROR
        assert str(caught.value) == (
            "reuse: s3://no-such-bucket/x/v1/store.json: can't write it, the bucket does not exist; check "
            "its name."
        )


class TestMemory:
    @pytest.mark.parametrize("small_enough", [True, False])
    def test_a_look_up_decodes_a_row_group_at_a_time(
        self, disk: LocalFolder, monkeypatch: pytest.MonkeyPatch, small_enough: bool
    ) -> None:
        monkeypatch.setattr(segment, "ROWS_PER_GROUP", 1000)
        Shop(disk).store().add("s", [table(range(20_000))])
        size = disk.list("v1/index")[0].size
        monkeypatch.setattr(segment, "_LARGEST_LOADED", size if small_enough else size - 1)
        decoded: list[int] = []

        def watch(self: segment.Segment, group: int, read: Any = segment.Segment.read) -> segment.Entries:
            entries: segment.Entries = read(self, group)
            decoded.append(len(entries))
            return entries

        monkeypatch.setattr(segment.Segment, "read", watch)
        watched = Faulty(disk, "", lambda *_: None)
        assert len(Shop(watched).store().lookup(sorted_keys(range(20_000)))) == 20_000
        assert decoded == [1000] * 20
        ranges = [length for name, _, length in watched.calls if name == "read_range"]
        if small_enough:
            # The footer, then everything in one request.
            assert ranges[-1] == size
            assert len(ranges) <= 3
        else:
            # The footer, then each row group in a request of its own.
            assert len(ranges) <= 2 + 20
            assert max(ranges[2:]) < 2 * size / 20
        assert not any(name in {"read", "open"} for name, _, _ in watched.calls)

    def test_row_groups_without_a_wanted_key_are_not_read(
        self, disk: LocalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(segment, "ROWS_PER_GROUP", 100)
        monkeypatch.setattr(data, "ROWS_PER_GROUP", 100)
        Shop(disk).store().add("s", [table(range(5000))])
        sizes = {entry.path: entry.size for entry in disk.list()}
        watched = Faulty(disk, "", lambda *_: None)
        store = Shop(watched).store()
        hits = store.lookup(sorted_keys([7, 8, "unknown"]))
        assert len(hits) == 2
        read = [length for name, _, length in watched.calls if name == "read_range"]
        assert len(read) <= 2 + 3
        watched.calls.clear()
        assert sum(rows.num_rows for rows in store.read(hits)) == 2
        read = [length for name, _, length in watched.calls if name == "read_range"]
        # Rows 7 and 8 were generated one after the other: one row group of 50, besides the footer.
        assert len(read) <= 3
        assert read[-1] < sizes["v1/data/s/00000.parquet"] / 25

    def test_tasks_in_work_are_as_many_as_workers(self) -> None:
        begun: list[int] = []

        def task(number: int) -> Any:
            begun.append(number)
            return lambda: number

        taken = in_order(task(number) for number in range(1000))
        assert [next(taken) for _ in range(3)] == [0, 1, 2]
        assert len(begun) <= 3 + 8
        taken.close()


def test_the_size_of_a_store_is_told_without_ray(tmp_path: Path) -> None:
    shop = Shop(LocalFolder(str(tmp_path)))
    shop.store().add("s", [table(range(3))])
    shop.store(max_age=DAY).add("t", [table(range(3, 5))])
    shop.now += DAY
    shop.folder.write("v1/index/broken.parquet", b"")
    report = shop.store().report()
    assert (report.rows, report.expired, report.submissions, report.data_files) == (5, 2, 2, 2)
    assert (report.segments, report.unusable) == (3, 1)
    assert (report.oldest, report.newest) == (START, START)
    assert report.index_bytes == sum(entry.size for entry in shop.folder.list("v1/index"))
    code = (
        "import runpy, sys; sys.modules['ray'] = None\n"
        "runpy.run_module('airflow_provider_raybatch.job.response_store', run_name='__main__')"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.startswith(
        "5 responses (2 expired) of 2 submissions, stored 2025-06-15 to 2025-06-15;"
    ), told.stderr
