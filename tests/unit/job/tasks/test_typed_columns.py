# SPDX-License-Identifier: Apache-2.0
"""Typed columns: the type of each property, the values of responses, and whole jobs."""

from __future__ import annotations

import ast
import pickle
from enum import Enum
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from airflow_provider_raybatch.contract.arguments.response_schema import kind_of_values
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest, Digests
from airflow_provider_raybatch.dataset import open_dataset
from airflow_provider_raybatch.job.input.json_types import TEXT as JSON_TEXT
from airflow_provider_raybatch.job.input.json_types import arrow_type
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.row import Completion, Request, Response, RowFailure
from airflow_provider_raybatch.job.tasks.generate import Generate
from airflow_provider_raybatch.job.tasks.typed_columns import arrow_types, column_kinds, typed
from tests.support.documents import blocks
from tests.support.echo_place import EchoPlace
from tests.support.specs import spec

TEXT, LONG, REAL, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    sku: str
    amount: int | None = None


class Tree(BaseModel):
    name: str
    children: list[Tree] = []
    parent: Tree | None = None


class Everything(BaseModel):
    text: str
    whole: int
    real: float
    flag: bool
    colour: Colour
    size: Literal["s", "m"] | None
    rank: Literal[1, 2]
    one: Literal["x"]
    lines: list[Line]
    first: Line | None = None
    union: int | str
    free: dict[str, int]
    pair: tuple[int, str]
    tree: Tree
    matrix: list[list[float]]


def test_pydantic_types_become_arrow_types() -> None:
    line = pa.struct([("sku", TEXT), ("amount", LONG)])
    assert arrow_types(column_kinds(Everything.model_json_schema())) == {
        "text": TEXT, "whole": LONG, "real": REAL, "flag": FLAG, "colour": TEXT, "size": TEXT, "rank": LONG,
        "one": TEXT, "lines": pa.list_(line), "first": line, "union": TEXT, "free": TEXT, "pair": TEXT,
        "tree": pa.struct([("name", TEXT), ("children", pa.list_(TEXT)), ("parent", TEXT)]),
        "matrix": pa.list_(pa.list_(REAL)),
    }  # fmt: skip


NULL: dict[str, Any] = {"type": "null"}
HOLDS: dict[pa.DataType, str] = {LONG: "a number", REAL: "a number", FLAG: "true or false", TEXT: "text"}
DEFINED = {
    "n": {"type": "number"},
    "level": {"enum": [1, 2], "type": "integer"},
    "again": {"$ref": "#/$defs/again"},
    "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}},
}
DOUBLING = {
    f"d{level}": {
        "type": "object",
        "properties": {side: {"$ref": f"#/$defs/d{level + 1}"} for side in ("left", "right")},
    }
    for level in range(18)
} | {"d18": {"type": "string"}}


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "boolean"}, FLAG),
        ({"type": ["integer", "null"]}, LONG),
        ({"type": ["integer", "string"]}, TEXT),
        ({"enum": ["a", None]}, TEXT),
        ({"enum": [1, 2]}, LONG),
        ({"enum": [1, 2.5]}, REAL),
        ({"enum": [1, 2.5, None]}, REAL),
        ({"enum": [1, "a"]}, TEXT),
        ({"enum": [True, 1]}, TEXT),
        ({"enum": [[1]]}, TEXT),
        ({"enum": []}, TEXT),
        ({"enum": [None]}, TEXT),
        ({"const": True}, FLAG),
        ({"const": 1.5}, REAL),
        ({"oneOf": [{"type": "number"}, {"type": "null"}]}, REAL),
        ({"anyOf": [{"$ref": "#/$defs/level"}, NULL]}, LONG),
        ({"anyOf": [{"anyOf": [{"enum": ["a"]}, NULL]}, NULL]}, TEXT),
        ({"anyOf": [{"type": "boolean", "const": True}, {"type": "boolean", "const": False}]}, TEXT),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, TEXT),
        ({"anyOf": [NULL]}, TEXT),
        ({"anyOf": {}}, TEXT),
        ({"type": "string", "anyOf": [{"minLength": 1}, {"maxLength": 2}]}, TEXT),
        ({"allOf": [{"$ref": "#/$defs/n"}], "default": 1}, REAL),
        ({"allOf": [{"$ref": "#/$defs/n"}, {"minimum": 1}]}, TEXT),
        ({"$ref": "#/$defs/gone"}, TEXT),
        ({"$ref": "https://example.com/s"}, TEXT),
        ({"$ref": "#"}, pa.struct([("x", TEXT)])),
        ({"$ref": "#/$defs/again"}, TEXT),
        ({"$ref": "#/$defs/level"}, LONG),
        ({"$ref": "#/$defs/tree"}, pa.struct([("left", TEXT)])),
        ({"properties": {"a": {"type": "integer"}}}, pa.struct([("a", LONG)])),
        ({"type": "object"}, TEXT),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, TEXT),
        (
            {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
            pa.struct([("a", TEXT)]),
        ),
        ({"type": "object", "properties": {"": {}}}, TEXT),
        ({"type": "array"}, TEXT),
        ({"type": "array", "items": {}}, pa.list_(TEXT)),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}}, TEXT),
        ({"type": "null"}, TEXT),
        ({"type": "decimal"}, TEXT),
        ({"type": {}}, TEXT),
        ({"type": []}, TEXT),
        ({}, TEXT),
        (True, TEXT),
    ],
    ids=str,
)
def test_schemas_become_arrow_types(part: Any, kind: pa.DataType) -> None:
    """The Airflow side knows them, too, by which it judges conditions and `best`; it has no Arrow."""
    schema = {"type": "object", "properties": {"x": part}, "$defs": DEFINED}
    column = column_kinds(schema)["x"]
    assert arrow_type(column) == kind
    assert kind_of_values(part, schema) == (None if column == JSON_TEXT else HOLDS.get(kind))


def test_references_that_multiply_end() -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": DOUBLING}
    kind = arrow_types(column_kinds(schema))["x"]
    assert 18 < str(kind).count("left") < 1000
    assert pa.types.is_struct(kind)


KINDS = column_kinds({
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "r": {"type": "number"},
        "s": {"type": "string"},
        "b": {"type": "boolean"},
        "l": {"type": "array", "items": {"type": "integer"}},
        "o": {"properties": {"a": {"type": "string"}}},
        "u": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    },
})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"n": 5.0, "r": 1, "s": "", "b": false}', {"n": 5, "r": 1.0, "s": "", "b": False}),
        ('{"l": [1, null], "o": {"a": null, "z": 1}}', {"l": [1, None], "o": {"a": None}}),
        ('{"u": "3"}', {"u": '"3"'}),
        ('{"u": {"ä": [1]}}', {"u": '{"ä": [1]}'}),
        ('{"u": null, "unknown": 1}', {}),
        ('{"s": "\\ud800 \\ud83d\\ude00", "u": "\\ud800"}', {"s": "\ufffd 😀", "u": '"\ufffd"'}),
        ('{"n": -9223372036854775808}', {"n": -(2**63)}),
    ],
)
def test_values_of_a_response(text: str, values: dict[str, Any]) -> None:
    columns, reasons = typed(pa.array([text, None]), KINDS)
    assert reasons.to_pylist() == [None, None]
    assert columns.to_pylist() == [{**dict.fromkeys(KINDS), **values}, None]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            '{"n": 9223372036854775808}',
            "$.n is 9223372036854775808, and its column holds whole numbers of 64",
        ),
        ('{"n": 1.5}', "$.n is 1.5, and its column holds whole numbers of 64 bits"),
        ('{"n": true}', "$.n is True, and its column holds whole numbers of 64 bits"),
        ('{"n": 1e999}', "$.n is inf, and its column holds whole numbers of 64 bits"),
        ('{"r": 1e999}', "$.r is inf, and its column holds finite numbers"),
        ('{"r": NaN}', "$.r is nan, and its column holds finite numbers"),
        ('{"r": ' + "9" * 400 + "}", "$.r is 99999"),
        ('{"u": [1e999]}', "Out of range float values are not JSON compliant"),
        ('{"s": 1}', "$.s is 1, and its column holds text"),
        ('{"b": 0}', "$.b is 0, and its column holds true or false"),
        ('{"l": [[1]]}', "$.l[0] is [1], and its column holds whole numbers of 64 bits"),
        ('{"l": {}}', "$.l is {}, and its column holds lists"),
        ('{"o": {"a": 1}}', "$.o.a is 1, and its column holds text"),
        ("[1]", "$ is [1], and not an object"),
        ("null", "$ is None, and not an object"),
        ('{"u": ' + "[" * 100_000, "it is nested too deeply"),
        ("no", "Expecting value"),
    ],
)
def test_a_value_without_a_place_fails_its_row(text: str, why: str) -> None:
    columns, reasons = typed(pa.array([text]), KINDS)
    assert columns.to_pylist() == [None]
    (reason,) = reasons.to_pylist()
    assert reason.startswith(f"the response does not fit the columns of response_format ({why}")


INVOICE = {
    "type": "object",
    "properties": {
        "number": {"type": "integer"},
        "state": {"enum": ["open", "paid"]},
        "lines": {"type": "array", "items": {"type": "string"}},
        "note": {"anyOf": [{"type": "null"}, {"type": "string"}]},
    },
    "required": ["number", "state"],
    "additionalProperties": False,
}
TYPES = {"number": LONG, "state": TEXT, "lines": pa.list_(TEXT), "note": TEXT}
HUGE = {"type": "object", "properties": {"number": {"type": "integer", "minimum": 2**63}}}
ROWS = [{"text": f"company {number}"} for number in range(7)]


def checked(text: str, row: dict[str, Any] | None = None, **fields: Any) -> Response | RowFailure:
    task = Generate(spec(**{"engine": "vllm", "model": "m", "response_format": INVOICE, **fields}))
    assert pickle.loads(pickle.dumps(task)).derived == task.derived
    return task.check(Response((Completion(text, "stop", 2),), 1), row or {})


def test_a_response_that_breaks_the_schema_is_a_dead_letter() -> None:
    good = '{"number": 1, "state": "paid"}'
    assert isinstance(checked(good), Response)
    for text in ('{"number": 1}', '{"number": 1, "state": "lost"}', '{"number": 1, "state": "paid", "x": 1}'):
        failure = checked(text)
        assert isinstance(failure, RowFailure)
        assert (failure.step, failure.input_tokens, failure.output_tokens) == ("parse", 1, 2)
        assert failure.reason.startswith("the response does not fit the JSON schema ($")
    huge = checked('{"number": 9223372036854775808, "state": "paid"}')
    assert isinstance(huge, RowFailure)
    assert huge.reason.startswith("the response does not fit the columns of response_format ($.number is 92")


def test_a_rows_own_constraint_does_not_replace_the_columns() -> None:
    row = {"structured_outputs": {"json": {"type": "object"}}}
    assert isinstance(checked('{"number": 1, "state": "paid"}', row), Response)
    assert isinstance(checked('{"other": 1}', row), RowFailure)
    choice = {"structured_outputs": {"choice": ["yes"]}}
    assert isinstance(checked("yes", choice), RowFailure)


def test_response_format_and_sampling_share_request_keys() -> None:
    asked = Request(messages=[{"role": "user", "content": "x"}])
    for other in ({}, {"temperature": 0, "max_tokens": 5}):
        written = spec(sampling={**other, "structured_outputs": {"json": INVOICE}})
        given = spec(sampling=other, response_format=INVOICE)
        model = spec(sampling=other, response_format="m:M").with_response_schema(INVOICE)
        keys = {Keyer(one, {"top_p": 0.5}, Digests(model="m")).key(asked) for one in (written, given, model)}
        assert len(keys) == 1


def schema_of(place: EchoPlace, manifest: BatchManifest) -> dict[str, pa.DataType]:
    """Return the types of a dataset's first file."""
    file = manifest.uri.removeprefix("file://") + "/" + manifest.files[0].path
    schema = pq.read_schema(file)
    return dict(zip(schema.names, schema.types, strict=True))


@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
def test_a_dataset_has_typed_columns(place: EchoPlace, format_: str) -> None:
    fields = {"response_format": INVOICE, "output_prefix": "llm_", "preserve_order": True}
    manifest = place.job(0, ROWS, destination_format=format_, rows_per_part=3, **fields)
    rows = place.rows(manifest)
    assert [row["text"] for row in rows] == [row["text"] for row in ROWS]
    assert all(isinstance(row["llm_number"], int) and row["llm_state"] in ("open", "paid") for row in rows)
    assert all(isinstance(row["llm_lines"], list) and row["llm_note"] is None for row in rows)
    assert '"number"' in rows[0]["llm_response"]
    typed_columns = {f"llm_{name}": kind for name, kind in TYPES.items()}
    assert list(rows[0])[-4:] == list(typed_columns)
    shown = {column.name: column.type for column in manifest.columns}
    assert shown["llm_number"] == "int64"
    assert shown["llm_lines"].startswith("list<")
    if format_ == "parquet":
        assert schema_of(place, manifest).items() >= typed_columns.items()


def test_an_empty_dataset_has_typed_columns(place: EchoPlace) -> None:
    manifest = place.job(0, [], response_format=INVOICE)
    assert manifest.counts.input == 0
    assert schema_of(place, manifest).items() >= TYPES.items()


def test_stored_responses_serve_jobs_with_and_without_columns(place: EchoPlace) -> None:
    store = {"reuse": str(place.root / "store")}
    written = {"structured_outputs": {"json": INVOICE}}
    place.job(0, ROWS, sampling={"temperature": 0, **written}, **store)
    asked = place.generated()
    place.folder = type(place.folder)(str(place.root / "other"))
    manifest = place.job(1, ROWS, sampling={"temperature": 0}, response_format=INVOICE, **store)
    assert (manifest.counts.reused, place.generated()) == (len(ROWS), asked)
    assert all(row["reused_from"] and isinstance(row["number"], int) for row in place.rows(manifest))


def test_rows_that_do_not_fit_are_dead_letters(place: EchoPlace) -> None:
    manifest = place.job(0, ROWS, response_format=HUGE, max_error_fraction=1.0)
    assert (manifest.counts.ok, manifest.counts.errors_by_step) == (0, {"parse": 7})
    assert "$.number is 9223372036854" in place.letters(manifest)[0]["reason"]
    assert schema_of(place, manifest)["number"] == LONG if manifest.files else True


def test_stored_responses_that_do_not_fit_are_dead_letters(place: EchoPlace) -> None:
    """A job without columns has kept them; with a user's function beside the columns, too."""
    store, greedy = {"reuse": str(place.root / "store")}, {"temperature": 0}
    place.job(0, ROWS, sampling={**greedy, "structured_outputs": {"json": HUGE}}, **store)
    place.folder = type(place.folder)(str(place.root / "other"))
    with pytest.raises(RaybatchError) as failed:
        place.job(1, ROWS, sampling=greedy, response_format=HUGE, **store)
    assert failed.value.failure_class is FailureClass.TOO_MANY_ERRORS
    assert "7 rows failed once the columns of response_format were made, more than" in str(failed.value)
    manifest = place.job(2, ROWS, sampling=greedy, response_format=HUGE, max_error_fraction=1.0, **store)
    assert manifest.counts.errors_by_step == {"parse": 7}
    assert all(letter["response"].startswith('{"number": 92233') for letter in place.letters(manifest))


def test_a_column_of_the_source_is_not_covered(place: EchoPlace) -> None:
    rows = [{"text": "a", "State": "b"}]
    with pytest.raises(PreflightError, match=r"the source has a column 'State' already, which is also an o"):
        place.job(0, rows, response_format=INVOICE)


def test_recursive_model_runs_with_the_echo_engine(place: EchoPlace) -> None:
    manifest = place.job(0, ROWS, response_format=Everything.model_json_schema(), output_prefix="x_")
    row = place.rows(manifest)[0]
    assert row["x_tree"]["name"]
    assert row["x_colour"] in ("red", "blue")
    assert row["x_lines"][0]["sku"]
    assert place.rows(place.job(1, ROWS, response_format=Tree.model_json_schema()))[0]["name"]


def test_dry_run_shows_that_a_rows_own_schema_does_not_fit(place: EchoPlace) -> None:
    """As with a model: the columns are those of the job's schema."""
    other = {"type": "object", "properties": {"nothing": {"type": "boolean"}}, "required": ["nothing"]}
    rows: list[dict[str, Any]] = [{**row, "sampling": None} for row in ROWS[:3]]
    rows[1]["sampling"] = {"structured_outputs": {"json": other}}
    fields = {"sampling_column": "sampling", "max_errors": 1}
    manifest = place.job(0, rows, response_format=INVOICE, **fields)
    assert manifest.counts.errors_by_step == {"parse": 1}
    (letter,) = place.letters(manifest)
    assert letter["ordinal"] == 1
    assert letter["reason"].startswith("the response does not fit the JSON schema ($: ")


def test_recipe_reads_typed_columns(place: EchoPlace) -> None:
    """Its schema makes a dataset, and its downstream task, without Airflow around it, reads that."""
    pytest.importorskip("duckdb")  # the cluster's Python has none
    (text,) = (block.text for block in blocks("python") if "INVOICE = {" in block.text)
    nodes = {getattr(node, "name", ""): node for node in ast.walk(ast.parse(text))}
    reader = nodes["total"]
    assert isinstance(reader, ast.FunctionDef)
    reader.decorator_list = []
    schema = next(node for node in ast.parse(text).body if isinstance(node, ast.Assign))
    found: dict[str, Any] = {"open_dataset": lambda result, aws_conn_id: open_dataset(result)}
    exec(compile(ast.Module([schema, reader], []), "recipe", "exec"), found)
    manifest = place.job(0, ROWS, response_format=found["INVOICE"])
    rows = place.rows(manifest)
    wanted = sum(row["total"] for row in rows if row["state"] == "open")
    result = {"uri": manifest.uri, "manifest_uri": manifest.manifest_uri, "format": manifest.format}
    assert found["total"](result) == pytest.approx(wanted)
    assert rows[0]["lines"][0].keys() == {"article", "amount"}
