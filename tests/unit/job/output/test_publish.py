# SPDX-License-Identifier: Apache-2.0
"""From parts to a dataset: each row once, in order, in one schema, or nothing at all."""

from __future__ import annotations

import datetime
import io
import itertools
import json
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import Digests, RunStatistics, Savings
from airflow_provider_raybatch.contract.run_numbers import Tokens
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.output import rows as rows_module
from airflow_provider_raybatch.job.output.journal import Journal, SupersededError
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.part import write_all
from airflow_provider_raybatch.job.preflight.checked_job import request_config_digest
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.row import Completion, Response, RowFailure, RowOutcome
from airflow_provider_raybatch.job.tasks.generate import Generate, output_type
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.publishing import dead_letters, failure, part, publish, response, rows_of
from tests.support.specs import spec as spec_of
from tests.support.specs import submitted


def numbered(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(first, first + count)]


@pytest.mark.parametrize("promised", [True, False])
def test_preserve_order_is_a_promise_of_the_manifest(folder: Folder, promised: bool) -> None:
    found = [part(folder, numbered(5, first), first=first) for first in (5, 0)]
    manifest = publish(folder, found, 10, preserve_order=promised)
    assert manifest.ordered is promised
    assert [row["id"] for row in rows_of(folder, manifest)] == list(range(10))


@pytest.mark.parametrize("keeps", [True, False])
def test_images_are_kept_where_they_are_asked_for(folder: Folder, keeps: bool) -> None:
    """The schema of the source has the column, which the parts of a job may lack."""
    rows = pa.table({"id": [0, 1], "photo": [b"a", b"b"], "uri": ["/a", "/b"]})
    task = Generate(spec_of(images=["photo", "uri"], keep_images=keeps))
    outcomes = [RowOutcome(number, response("r")) for number in (0, 1)]
    written = write_all(folder, "_raybatch/parts/task/run/raybatch-x-0/00000000", rows, outcomes, task)
    asked = {"images": ["photo", "uri"], "keep_images": keeps}
    manifest = publish(folder, written, 2, schema=rows.schema, **asked)
    found = rows_of(folder, manifest)
    assert [row["uri"] for row in found] == ["/a", "/b"]
    assert [row.get("photo") for row in found] == ([b"a", b"b"] if keeps else [None, None])
    assert ("photo" in found[0]) is keeps


def test_dataset_and_manifest_hold_the_parts_in_input_order(folder: Folder) -> None:
    found = [part(folder, numbered(5, first), first=first, submission=first // 10) for first in (5, 0, 10)]
    statistics = RunStatistics(effective_sampling={"temperature": 0})
    manifest = publish(
        folder, found, 15, statistics=statistics, own_parts="_raybatch/parts/task/run/raybatch-x-0"
    )
    assert [row["id"] for row in rows_of(folder, manifest)] == list(range(15))
    assert rows_of(folder, manifest)[3] == {
        "id": 3,
        "response": "r3",
        "finish_reason": "stop",
        "input_tokens": 3,
        "cached_tokens": 1,
        "output_tokens": 1,
    }
    assert manifest.counts.model_dump() == {
        "input": 15,
        "ok": 15,
        "error": 0,
        "resumed": 5,
        "reused": 0,
        "duplicates": 0,
        "blank": 0,
        "chunks": None,
        "errors_by_step": {},
    }
    assert manifest.tokens == Tokens(input=45, cached=15, output=15)
    assert manifest.finish_reasons == {"stop": 15}
    assert [file.rows for file in manifest.files] == [15]
    assert manifest.effective_sampling == {"temperature": 0}
    assert manifest.dead_letter_uri is None
    assert manifest.owner == submitted().submission.task
    assert json.loads(folder.read("manifest.json"))["uri"] == manifest.uri


def test_filled_tokens_of_all_attempts_are_in_the_manifest(folder: Folder) -> None:
    several = Response((Completion("a", "stop", 1, 2), Completion("b", "stop", 1, 3)), input_tokens=3)
    found = [
        part(folder, numbered(2), [several, failure()]),
        part(folder, numbered(1, 2), [several], first=2, submission=1),
    ]
    manifest = publish(folder, found, 3)
    assert manifest.tokens == Tokens(input=6, output=4, filled=10)
    assert manifest.summary().tokens == manifest.tokens
    assert not any("filled" in column.name for column in manifest.columns)


def test_savings_are_reckoned_at_the_runs_own_cost(folder: Folder) -> None:
    """It paid for ten tokens, and as many were filled in."""
    several = Response((Completion("a", "stop", 1, 2), Completion("b", "stop", 1, 3)), input_tokens=3)
    found = [part(folder, numbered(2), [several, several])]
    manifest = publish(folder, found, 2, statistics=RunStatistics(cost=0.5, currency="EUR"))
    assert (manifest.tokens_paid, manifest.savings) == (10, Savings(filled=10, cost=0.5))
    assert (manifest.cost, manifest.currency) == (0.5, "EUR")


def test_paid_and_saved_tokens_add_up_to_all_tokens(folder: Folder) -> None:
    """A row costs three prompt tokens and those of its answer; a failed one is paid for, too."""
    cut_off = RowFailure("length", "cut off", input_tokens=3, output_tokens=20)
    found = [
        part(folder, numbered(2), [response("a b"), cut_off]),
        part(folder, numbered(1, 1), [response("c")], first=1, submission=1),  # a retry of the same run
    ]
    manifest = publish(folder, found, 2)
    assert (manifest.tokens_paid, manifest.tokens_saved) == (5 + 23 + 4, 0)
    assert manifest.tokens_generated == 3  # of the delivered rows
    # A clear begins another run, which reuses both rows.
    cleared = submitted(token="later", destination=folder.uri)
    later = cleared.submission.model_copy(update={"submission_id": "raybatch-y-0"})
    cleared = cleared.model_copy(update={"submission": later})
    again = publish(folder, found[:2], 2, spec=cleared)
    assert (again.tokens_paid, again.tokens_saved) == (0, 5 + 4)
    assert again.tokens == manifest.tokens
    assert manifest.savings == Savings()
    assert again.savings == Savings(resumed=9)  # what they would have cost is not known
    summary = again.summary()
    assert (summary.tokens_paid, summary.tokens_saved, summary.gpu_seconds) == (0, 9, 0.0)


def test_resume_saves_what_earlier_attempts_have_asked(folder: Folder) -> None:
    """The run has paid for these tokens once; without resume the retry would have paid again."""
    found = [
        part(folder, numbered(2), [response("a b"), response("a b c")]),  # the first attempt
        part(folder, numbered(1, 2), [response("c")], first=2, submission=1),
    ]
    own = found[1].path.rpartition("/")[0]
    manifest = publish(folder, found, 3, own_parts=own)
    assert manifest.counts.resumed == 2
    assert (manifest.tokens_saved, manifest.savings) == (0, Savings(resumed=3 + 2 + 3 + 3))


def test_a_summary_has_what_closes_the_log(folder: Folder) -> None:
    reasons = ["it broke. See there.", "only 5 of 9 fit", "only 7 of 9 fit"]
    results = [failure(reason=reason) for reason in reasons] + [failure("read", "no text"), response("a b")]
    own = "_raybatch/parts/task/run/raybatch-x-0"
    first = publish(folder, [part(folder, numbered(5), results)], 5, own_parts=own).summary()
    assert first.main_failure == "mostly engine: only 5 of 9 fit"
    assert (first.tokens_generated, first.last_run) == (2, None)
    assert first.seconds is not None
    # The next dataset of the destination; its only row was generated by the submission before.
    carried = part(folder, numbered(1), [response("a b c")])
    again = publish(folder, [carried], 1, own_parts="_raybatch/parts/task/run/raybatch-x-1", id_column="id")
    assert (again.summary().main_failure, again.tokens_generated) == (None, 0)
    last = again.last_run
    assert last is not None
    assert (last.rows, last.errors, last.seconds, last.output_tokens) == (1, 4, first.seconds, 2)
    assert last.errors_by_step == {"engine": 3, "read": 1}
    assert (again.id_column, again.response_column) == ("id", "response")


def test_a_lost_manifest_of_the_run_before_hinders_nothing(disk: LocalFolder) -> None:
    first = publish(disk, [part(disk, numbered(1))], 1)
    disk.delete([first.manifest_uri.removeprefix(f"{disk.uri}/")])
    later = submitted(token="later", destination=disk.uri)
    assert publish(disk, [part(disk, numbered(1))], 1, spec=later).last_run is None


def test_a_row_counts_once_by_how_it_came(disk: LocalFolder) -> None:
    came = [
        (0, "generated", 4), (0, "stored", 2), (0, "carried", 3), (0, "duplicate", 1),
        (1, "generated", 5), (1, "stored", 1), (1, "carried", 2), (1, "duplicate", 2),
    ]  # fmt: skip
    found: list[parts.Part] = []
    for submission, origin, rows in came:
        first = sum(one.rows for one in found)
        made = part(disk, numbered(rows, first), first=first, submission=submission)
        table = pq.read_table(io.BytesIO(disk.read(made.path)))
        arrays = {name: table[name].combine_chunks() for name in table.column_names}
        arrays["origin"] = pa.array([origin] * rows)
        stem = f"{made.path.rpartition('/')[0]}/{origin}"
        found.append(parts.write_arrays(disk, stem, pa.table({}).select([]), arrays))
    manifest = publish(disk, found, 20, own_parts="_raybatch/parts/task/run/raybatch-x-1")
    counts = manifest.counts
    # Four tokens a row; this run generated 9 rows: 4 in its first submission, 5 in its last.
    assert manifest.tokens_saved == 4 * (20 - 9)
    assert (counts.ok, counts.resumed, counts.reused, counts.duplicates) == (20, 4 + 3 + 2, 3, 3)


class TestDoubles:
    @given(seed=st.integers(0, 10_000), rows_per_part=st.integers(1, 40))
    @settings(max_examples=25)
    def test_any_ledger_gives_each_row_once_in_order(self, seed: int, rows_per_part: int) -> None:
        import tempfile

        chance = random.Random(seed)
        total = chance.randint(1, 60)
        with tempfile.TemporaryDirectory() as scratch:
            disk = LocalFolder(scratch)
            found, good = [], set()
            for submission in range(chance.randint(1, 3)):
                first = 0
                while first < total:
                    size = min(chance.randint(1, 12), total - first)
                    ordinals = sorted(chance.sample(range(first, first + size), chance.randint(1, size)))
                    if submission == 0:
                        ordinals = list(range(first, first + size))
                    is_good = [chance.random() < 0.7 for _ in ordinals]
                    results = [response(f"s{submission}") if one else failure() for one in is_good]
                    good |= set(itertools.compress(ordinals, is_good))
                    rows = [{"id": ordinal} for ordinal in ordinals]
                    found.append(part(disk, rows, results, ordinals=ordinals, submission=submission))
                    first += size
            chance.shuffle(found)
            out = {"destination": scratch, "rows_per_part": rows_per_part}
            manifest = publish(disk, found, total, **out)
            assert [row["id"] for row in rows_of(disk, manifest)] == sorted(good)
            failed = [letter["ordinal"] for letter in dead_letters(disk, manifest)]
            assert failed == sorted(set(range(total)) - good)
            assert all(file.rows <= rows_per_part for file in manifest.files) or not good


class TestNothing:
    def test_a_missing_row_publishes_nothing(self, disk: LocalFolder) -> None:
        found = [part(disk, numbered(3)), part(disk, numbered(3, 4), first=4)]
        with pytest.raises(
            RaybatchError, match="6 rows are finished, but the input has 7; nothing was published"
        ) as e:
            publish(disk, found, 7)
        assert e.value.failure_class is FailureClass.INTERNAL
        assert disk.list("manifests") == []
        assert disk.head("manifest.json") is None
        assert Journal(disk, submitted().submission, False).committed() is None

    def test_a_claim_in_between_publishes_nothing(self, disk: LocalFolder) -> None:
        from airflow_provider_raybatch.job.output.commit import prepare

        mine, newer = (Journal(disk, submitted(number).submission, False) for number in (0, 1))
        mine.claim()
        newer.claim()
        with pytest.raises(SupersededError):
            prepare(submitted(0), mine, [part(disk, numbered(1))], 1, RunStatistics(), pa.schema([]), "")
        assert disk.list("manifests") == []
        assert disk.list("data") == []

    @pytest.mark.parametrize("kind", ["parquet", "jsonl"])
    def test_empty_dataset_has_the_destination_format(self, disk: LocalFolder, kind: str) -> None:
        schema = pa.schema([("id", pa.int64()), ("when", pa.timestamp("us")), ("unknown", pa.null())])
        manifest = publish(disk, [], 0, schema=schema, destination=disk.uri, destination_format=kind)
        assert rows_of(disk, manifest) == []
        assert manifest.counts.input == 0
        assert [(file.path, file.rows) for file in manifest.files] == [(f"part-00000.{kind}", 0)]
        names = [column.name for column in manifest.columns]
        assert names == ["id", "when", "unknown", *(column.name for column in output_type(False))]

    def test_failed_rows_alone_give_an_empty_dataset(self, disk: LocalFolder) -> None:
        found = [part(disk, numbered(2), [failure("template", "no"), failure("parse", "no")])]
        manifest = publish(disk, found, 2, schema=pa.schema([("id", pa.int64())]))
        assert rows_of(disk, manifest) == []
        assert manifest.counts.errors_by_step == {"template": 1, "parse": 1}
        assert set(manifest.reasons_by_step) == {"template", "parse"}
        assert dead_letters(disk, manifest)[0] == {
            "ordinal": 0,
            "step": "template",
            "reason": "no",
            "request": '{"prompt":"p"}',
            "row": {"id": 0},
        }


class TestFiles:
    def test_range_memory_is_bounded_for_parts_of_any_size(
        self, disk: LocalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rows_module, "_MOST_DECODED", 1_000_000)
        long = [{"id": number, "text": "the same " * 10_000} for number in range(40)]
        short = [{"id": 40 + number, "text": "short"} for number in range(40)]
        found = [part(disk, rows, first=rows[0]["id"]) for rows in (long[:20], long[20:], short)]
        assert sum(one.bytes for one in found) < 50_000
        manifest = publish(disk, found, 80)
        assert [row["id"] for row in rows_of(disk, manifest)] == list(range(80))
        assert [file.rows for file in manifest.files] == [10, 10, 10, 10, 40]

    def test_rows_per_part_is_kept(self, disk: LocalFolder) -> None:
        found = [part(disk, numbered(8, first), first=first) for first in range(0, 40, 8)]
        manifest = publish(disk, found, 40, destination=disk.uri, rows_per_part=15)
        assert [file.rows for file in manifest.files] == [15, 15, 10]
        assert [file.path for file in manifest.files] == [f"part-0000{number}.parquet" for number in range(3)]
        assert [row["id"] for row in rows_of(disk, manifest)] == list(range(40))

    def test_a_range_without_a_good_row_leaves_no_file(self, disk: LocalFolder) -> None:
        found = [
            part(disk, numbered(2), [failure(), failure()]),
            part(disk, numbered(2, 2), first=2),
        ]
        manifest = publish(disk, found, 4, destination=disk.uri, rows_per_part=2)
        assert [file.path for file in manifest.files] == ["part-00001.parquet"]
        assert [row["id"] for row in rows_of(disk, manifest)] == [2, 3]

    def test_an_earlier_larger_limit_leaves_no_rows_behind(self, disk: LocalFolder) -> None:
        found = [part(disk, numbered(10)), part(disk, numbered(10, 10), first=10)]
        manifest = publish(disk, found[:1], 5)
        assert [row["id"] for row in rows_of(disk, manifest)] == list(range(5))


class TestCompletions:
    def test_all_of_them_are_kept_and_counted(self, disk: LocalFolder) -> None:
        found = [part(disk, numbered(1), [response("a b", "c", "d e f", reason="length")], completions=True)]
        manifest = publish(disk, found, 1, sampling={"n": 3})
        (row,) = rows_of(disk, manifest)
        assert row["response"] == "a b"
        assert row["output_tokens"] == manifest.tokens.output == 6
        assert [completion["text"] for completion in row["completions"]] == ["a b", "c", "d e f"]
        assert manifest.finish_reasons == {"length": 3}


class TestJsonl:
    def rows(self, disk: LocalFolder, table: Any) -> list[dict[str, Any]]:
        out = {"destination": disk.uri, "destination_format": "jsonl"}
        return rows_of(disk, publish(disk, [part(disk, table)], len(table), **out))

    def test_rows_are_objects_a_line(self, disk: LocalFolder) -> None:
        rows = self.rows(disk, [{"text": "two\nlines \u2028 ü"}, {"text": None}])
        assert [row["text"] for row in rows] == ["two\nlines \u2028 ü", None]
        assert rows[0]["response"] == "r0"

    def test_what_json_does_not_know_is_text_or_null(self, disk: LocalFolder) -> None:
        table = pa.table({
            "bytes": pa.array([b"\x00\xff"]),
            "day": pa.array([0], pa.date32()),
            "price": pa.array(["1.50"]).cast(pa.decimal128(5, 2)),
            "nan": pa.array([float("nan")]),
            "inside": pa.array([[float("inf"), 1.0]]),
            "lasts": pa.array([datetime.timedelta(seconds=90)]),
            "map": pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64())),
            "maps": pa.array(
                [[[(datetime.date(1970, 1, 1), [])]]],
                pa.list_(pa.map_(pa.date32(), pa.map_(pa.string(), pa.string()))),
            ),
        })
        (row,) = self.rows(disk, table)
        assert (row["bytes"], row["day"], row["price"]) == ("AP8=", "1970-01-01", "1.50")
        assert row["nan"] is None
        assert row["inside"] == [None, 1.0]
        assert (row["lasts"], row["map"]) == ("PT1M30S", {"a": 1, "b": None})
        assert row["maps"] == [{"1970-01-01": {}}]


class TestLedger:
    def test_run_folder_depends_on_task_config_and_input_only(self) -> None:
        def place(spec: BatchInferenceSpec, listing: str = "a", digests: Digests | None = None) -> str:
            assert spec.submission is not None
            asked = request_config_digest(spec, spec.submission, Keyer(spec, {}, digests or Digests()))
            return layout.run_folder(spec.submission, asked, listing * 32)

        base = place(submitted())
        drivers = {layout.driver_folder(base, "raybatch-x-0") for _ in range(2)}
        assert len(drivers) == 2
        written = [parts.Part(f"{folder}/00000000.0-1.2.2.parquet", 2, 2, 0, 1, 9) for folder in drivers]
        assert {one.submission_id for one in written} == {"raybatch-x-0"}
        assert base == place(submitted(3, token="other", preserve_order=True))
        others = [
            place(submitted(), "b"),
            place(submitted(model="other")),
            place(submitted(), digests=Digests(model="new weights")),
            place(submitted(on_clear="regenerate")),
            place(submitted(on_clear="regenerate", token="other")),
            place(submitted(task={"dag_id": "d", "run_id": "r", "task_id": "t"})),
        ]
        assert len({base, *others}) == 7
        assert base.startswith("_raybatch/parts/")
