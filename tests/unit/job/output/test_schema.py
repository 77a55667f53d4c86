# SPDX-License-Identifier: Apache-2.0
"""All parts get one schema, for any names and types of columns."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import dead_letters, failure, part, publish, response, rows_of
from tests.support.specs import submitted


def _shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class TestSchema:
    def publish_columns(
        self, disk: LocalFolder, *tables: pa.Table | list[dict[str, Any]], **fields: Any
    ) -> Any:
        found, first = [], 0
        for table in tables:
            found.append(part(disk, table, first=first))
            first += len(table)
        manifest = publish(disk, found, first, **fields)
        rows = rows_of(disk, manifest)
        columns = {column.name: column.type for column in manifest.columns}
        outputs = set(task_of(submitted(**fields)).names.values())
        return (
            {name: kind for name, kind in columns.items() if name not in outputs},
            [{name: value for name, value in row.items() if name not in outputs} for row in rows],
        )

    @pytest.mark.parametrize(
        ("one", "other", "kind", "values"),
        [
            (1, 2, "int64", [1, 2]),
            (1, 2.5, "double", [1.0, 2.5]),
            (1, "x", "string", ["1", "x"]),
            (1, None, "int64", [1, None]),
            (None, None, "string", [None, None]),
            (True, 3, "string", ["true", "3"]),
            ("x", {"a": 1}, "string", ["x", '{"a": 1}']),
            (
                {"a": 1},
                {"b": "x"},
                "struct<a: int64, b: string>",
                [{"a": 1, "b": None}, {"a": None, "b": "x"}],
            ),
            ({"a": 1}, {"a": "x"}, "string", ['{"a": 1}', '{"a": "x"}']),
            ({"a": 1}, {"a": None}, "struct<a: int64>", [{"a": 1}, {"a": None}]),
            ([], [1], "list<element: int64>", [[], [1]]),
            ([1], ["x"], "string", ["[1]", '["x"]']),
            ([{"a": 1}], [{"b": 2}], "list<element: struct<a: int64, b: int64>>", None),
            (2**60 + 1, 0.5, "string", [str(2**60 + 1), "0.5"]),
            (10**30, 1, "string", [str(10**30), "1"]),
            ([2**60 + 1], [0.5], "string", [f"[{2**60 + 1}]", "[0.5]"]),
            ({"a": 2**60 + 1}, {"a": 0.5}, "string", [f'{{"a": {2**60 + 1}}}', '{"a": 0.5}']),
            ([[{"a": 2**60 + 1}]], [[{"a": 0.5}]], "string", None),
            (
                {"id": 2**60 + 1, "score": 0.5},
                {"id": 1, "score": 0.25},
                "struct<id: int64, score: double>",
                [{"id": 2**60 + 1, "score": 0.5}, {"id": 1, "score": 0.25}],
            ),
        ],
    )
    def test_columns_that_differ_from_part_to_part(
        self, disk: LocalFolder, one: Any, other: Any, kind: str, values: list[Any] | None
    ) -> None:
        for number, pair in enumerate(((one, other), (other, one))):
            place = LocalFolder(f"{disk.uri}-{number}")
            tables = [[{"x": value}] for value in pair]
            kinds, rows = self.publish_columns(place, *tables, destination=place.uri)
            # Fields of structs come in order of appearance.
            assert sorted(kinds["x"]) == sorted(kind)
            expected = [row for row in values if row is not None] if values else None
            if expected is not None:
                found = [row["x"] for row in rows if row["x"] is not None]
                assert sorted(map(_shown, found)) == sorted(map(_shown, expected))

    @pytest.mark.parametrize(
        ("one", "other", "kind"),
        [
            (pa.array([1], pa.int8()), pa.array([2], pa.int32()), "int32"),
            (pa.array([2**63], pa.uint64()), pa.array([-1], pa.int64()), "decimal128(20, 0)"),
            (pa.array(["a"], pa.large_string()), pa.array(["b"], pa.string()), "large_string"),
            (pa.array(["a"]), pa.array([b"\xff"], pa.binary()), "binary"),
            (pa.array([0], pa.timestamp("us")), pa.array([0], pa.date32()), "string"),
            (pa.array([1.5], pa.float32()), pa.array([2**40 + 1], pa.int64()), "double"),
            (pa.array([[1]], pa.list_(pa.int64())), pa.array([[1]], pa.large_list(pa.int64())), "large_list"),
            (pa.array([0.5]), pa.array([Decimal("12345678901234567.25")], pa.decimal128(20, 2)), "string"),
            (pa.array([2**62]), pa.array([Decimal("1.25")], pa.decimal128(5, 2)), "decimal128(22, 2)"),
            (pa.array([[2**63]], pa.list_(pa.uint64())), pa.array([[1]]), "string"),
            (pa.array([[2**62]]), pa.array([[Decimal("1.25")]]), "string"),
            (pa.array([1], pa.float16()), pa.array([Decimal("1.25")]), "string"),
            (pa.array([10**12], pa.duration("s")), pa.array([1], pa.duration("ns")), "string"),
            (
                pa.array([[253402214400_000_000]], pa.list_(pa.timestamp("us"))),
                pa.array([[0]], pa.list_(pa.timestamp("ns"))),
                "string",
            ),
        ],
    )
    def test_arrow_types_that_differ_from_file_to_file(
        self, disk: LocalFolder, one: pa.Array, other: pa.Array, kind: str
    ) -> None:
        kinds, rows = self.publish_columns(disk, pa.table({"x": one}), pa.table({"x": other}))
        assert kinds["x"].startswith(kind)
        assert len(rows) == 2
        assert all(row["x"] is not None for row in rows)

    @pytest.mark.parametrize(
        ("column", "texts"),
        [
            (pa.array([b"a\xff", b"b"]).view(pa.string()), ["a\ufffd", "b"]),
            (
                pa.array([2**31 - 1, 0], pa.int32()).view(pa.date32()),
                ["<value out of range: 2147483647>", "1970-01-01"],
            ),
        ],
    )
    def test_values_that_python_does_not_know_are_written_as_json(
        self, disk: LocalFolder, column: pa.Array, texts: list[str]
    ) -> None:
        table = pa.table({"x": pa.concat_arrays([column, column[:1]])})
        found = part(disk, table, [response("r"), response("r"), failure()])
        manifest = publish(disk, [found], 3, destination=disk.uri, destination_format="jsonl")
        assert [row["x"] for row in rows_of(disk, manifest)] == texts
        assert [letter["row"] for letter in dead_letters(disk, manifest)] == [{"x": texts[0]}]

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (pa.array([0], pa.date32()), "1970-01-01"),
            (pa.array([90], pa.duration("s")), "PT1M30S"),
            (pa.array([[90]], pa.list_(pa.duration("ms"))), '["PT0.09S"]'),
            (pa.array([[("a", 90)]], pa.map_(pa.string(), pa.duration("s"))), '{"a": "PT1M30S"}'),
        ],
    )
    def test_a_value_that_becomes_text_has_the_form_of_prompts(
        self, disk: LocalFolder, value: pa.Array, text: str
    ) -> None:
        _, rows = self.publish_columns(disk, pa.table({"x": value}), pa.table({"x": pa.array(["later"])}))
        assert [row["x"] for row in rows] == [text, "later"]

    @pytest.mark.parametrize(
        "name", ["a.b", ".a", "[a]", "", "a b", "ü", "$", "ordinal", "ok", "input", "age"]
    )
    def test_any_column_name_comes_through(self, disk: LocalFolder, name: str) -> None:
        kinds, rows = self.publish_columns(disk, [{name: 1, "z": 0}], [{name: "x"}, {"z": 5}])
        assert kinds == {name: "string", "z": "int64"}
        assert [row[name] for row in rows] == ["1", "x", None]
        assert [row["z"] for row in rows] == [0, None, 5]

    def test_columns_come_in_the_order_of_the_source(self, disk: LocalFolder) -> None:
        found = [
            part(disk, [{"c": 1, "b": 1}], first=1),
            part(disk, [{"a": 1, "b": 1}], first=0),
        ]
        manifest = publish(disk, found, 2, schema=pa.schema([("b", pa.int64()), ("a", pa.int64())]))
        assert [column.name for column in manifest.columns[:3]] == ["b", "a", "c"]

    def test_nested_and_special_values_come_through(self, disk: LocalFolder) -> None:
        table = pa.table({
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "bytes": pa.array([b"\x00\xff", None]),
            "when": pa.array([0, None], pa.timestamp("ns", "Europe/Berlin")),
            "price": pa.array([None, "1.50"]).cast(pa.decimal128(5, 2)),
            "nan": pa.array([float("nan"), float("inf")]),
            "list": pa.array([[1, None], []]),
        })
        kinds, rows = self.publish_columns(disk, table)
        assert kinds["when"] == "timestamp[ns, tz=Europe/Berlin]"
        assert kinds["price"] == "decimal128(5, 2)"
        assert rows[0]["bytes"] == b"\x00\xff"

    def test_bad_rows_alone_in_a_part_have_no_columns(self, disk: LocalFolder) -> None:
        found = [
            part(disk, [{}, {}], [failure("read"), failure("read")]),
            part(disk, [{"id": 2}], first=2),
        ]
        manifest = publish(disk, found, 3)
        assert [row["id"] for row in rows_of(disk, manifest)] == [2]
        assert [letter["row"] for letter in dead_letters(disk, manifest)] == [{"id": None}, {"id": None}]

    def test_row_with_an_output_column_is_kept_as_a_dead_letter(self, disk: LocalFolder) -> None:
        found = [
            part(disk, [{"id": 0}, {"id": 1, "response": "mine"}], [response("theirs"), failure("template")])
        ]
        manifest = publish(disk, found, 2)
        assert [column.name for column in manifest.columns].count("response") == 1
        assert [(row["id"], row["response"]) for row in rows_of(disk, manifest)] == [(0, "theirs")]
        assert dead_letters(disk, manifest)[0]["row"] == {"id": 1, "response": "mine"}

    def test_output_columns_take_the_output_prefix(self, disk: LocalFolder) -> None:
        out = {"destination": disk.uri, "output_prefix": "llm_"}
        manifest = publish(disk, [part(disk, [{"response": "input's own"}], [response("x")])], 1, **out)
        assert rows_of(disk, manifest)[0]["response"] == "input's own"
        assert rows_of(disk, manifest)[0]["llm_response"] == "x"
