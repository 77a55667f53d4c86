# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.arguments.data import CsvOptions
from airflow_provider_raybatch.job.input import text_rows
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.listing import SourceFile
from airflow_provider_raybatch.job.input.text_index import Cell, LongRowError, index
from airflow_provider_raybatch.job.input.text_rows import csv_rows, json_rows

from_csv_alphabet = st.text(st.sampled_from('a,"\n\r ;é'), max_size=60)
field = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
table = st.lists(st.lists(field, min_size=2, max_size=2), max_size=30)

NAMED = SourceFile("x.csv", 0, "", csv=CsvOptions(header=["x", "y"]))


def cells_of(
    data: bytes, *, quoted: bool, start: int = 0, cell_rows: int = 3, block: int = 7, delimiter: str = ","
) -> list[Cell]:
    sizes: Any = {"cell_rows": cell_rows, "block": block}
    return list(index(io.BytesIO(data), quoted=quoted, start=start, delimiter=delimiter, **sizes))


def whole_csv(text: str, delimiter: str) -> list[list[str] | str]:
    """Return all records as the csv module reads them, ``error`` for those that it refuses."""
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True)
    out: list[list[str] | str] = []
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return out
        except csv.Error:
            out.append("error")
            continue
        if fields:
            out.append(fields)


def ends_in_a_quote(text: str, delimiter: str = ",") -> bool:
    try:
        list(csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True))
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            return True
        # One error hides errors of later lines.
        return any(
            isinstance(record, BadRow) and "unexpected end of data" in record.reason
            for record in text_rows.records(text, delimiter)
        )
    return False


def assert_cells_are_whole(cells: list[Cell], data: bytes, start: int, cell_rows: int) -> None:
    position = start
    for cell in cells:
        assert cell.start == position
        assert cell.stop > cell.start
        position = cell.stop
    assert position <= len(data)
    assert all(cell.rows == cell_rows for cell in cells[:-1])
    assert all(0 < cell.rows <= cell_rows for cell in cells)


@given(
    text=from_csv_alphabet,
    cell_rows=st.integers(1, 4),
    block=st.integers(1, 40),
    delimiter=st.sampled_from(",;\t|"),
)
@example(text='a"b\nc"d\n', cell_rows=1, delimiter=",", block=3)  # quotes inside unquoted fields
@example(text='a\rb,"c\nd"\n', cell_rows=1, delimiter=",", block=100)  # csv gives up on the first line
@example(text='"a""\n"\n', cell_rows=1, delimiter=",", block=4)  # a doubled quote at the end of a block
@example(text='"a"b"\n"\n', cell_rows=1, delimiter=",", block=40)
@example(text='a\r\n"b\r\nc"\r\n', cell_rows=1, delimiter=",", block=2)
@example(text='1,"a\n2,"b"\n3,c\n', cell_rows=1, delimiter=",", block=5)  # a forgotten quote
def test_csv_rows_are_where_the_csv_module_finds_them(
    text: str, cell_rows: int, block: int, delimiter: str
) -> None:
    text = text.replace(",", delimiter)
    data = text.encode()
    cut: Any = {"quoted": True, "cell_rows": cell_rows, "block": block, "delimiter": delimiter}
    if ends_in_a_quote(text, delimiter):
        with pytest.raises(text_rows.OpenQuoteError):
            cells_of(data, **cut)
        return
    cells = cells_of(data, **cut)
    assert_cells_are_whole(cells, data, 0, cell_rows)
    read = [
        "error" if isinstance(record, BadRow) else record
        for cell in cells
        for record in text_rows.records(data[cell.start : cell.stop].decode(), delimiter)
    ]
    assert read == whole_csv(text, delimiter)
    assert sum(cell.rows for cell in cells) == len(read)


@given(rows=table, ending=st.sampled_from(["\n", "\r\n"]), final=st.booleans(), block=st.integers(1, 200))
def test_any_table_that_csv_writes_is_cut_between_its_rows(
    rows: list[list[str]], ending: str, final: bool, block: int
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator=ending).writerows(rows)
    text = out.getvalue() if final else out.getvalue().removesuffix(ending)
    data = text.encode()
    cells = cells_of(data, quoted=True, cell_rows=2, block=block)
    read = [row for cell in cells for row in csv_rows(data[cell.start : cell.stop], ("x", "y"), NAMED)]
    nulls = {r"\N": None}
    assert read == [{"x": nulls.get(x, x), "y": nulls.get(y, y)} for x, y in rows]


@given(
    values=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=30),
    endings=st.lists(
        st.sampled_from(["\n", "\r\n", "\n\n", "\n   \r\n", "\n\t\n"]), min_size=30, max_size=30
    ),
    final=st.booleans(),
    ascii_only=st.booleans(),
    block=st.integers(1, 200),
    cell_rows=st.integers(1, 4),
)
def test_json_rows_are_where_the_json_module_finds_them(
    values: list[dict[str, str]],
    endings: list[str],
    final: bool,
    ascii_only: bool,
    block: int,
    cell_rows: int,
) -> None:
    lines = [json.dumps(value, ensure_ascii=ascii_only) for value in values]
    text = "".join(line + ending for line, ending in zip(lines, endings, strict=False))
    data = (text if final else text.rstrip()).encode()
    cells = cells_of(data, quoted=False, cell_rows=cell_rows, block=block)
    assert_cells_are_whole(cells, data, 0, cell_rows)
    read = [row for cell in cells for row in json_rows(data[cell.start : cell.stop])]
    assert read == values
    assert sum(cell.rows for cell in cells) == len(values)


@given(data=st.binary(max_size=80), block=st.integers(1, 40))
def test_whatever_is_in_a_jsonl_file_is_counted_as_it_is_read(data: bytes, block: int) -> None:
    cells = cells_of(data, quoted=False, block=block)
    assert [len(json_rows(data[cell.start : cell.stop])) for cell in cells] == [cell.rows for cell in cells]


@given(
    data=st.lists(st.sampled_from([b"a", b",", b'"', b"\n", b"\r\n", b"\xff", b" "]), max_size=40).map(
        b"".join
    ),
    block=st.integers(1, 40),
)
def test_damaged_csv_is_counted_as_it_is_read(data: bytes, block: int) -> None:
    if ends_in_a_quote(data.decode("latin-1")):
        with pytest.raises(text_rows.OpenQuoteError):
            cells_of(data, quoted=True, block=block)
        return
    cells = cells_of(data, quoted=True, block=block)
    assert [len(csv_rows(data[c.start : c.stop], ("x",), SourceFile("x.csv", 0, ""))) for c in cells] == [
        cell.rows for cell in cells
    ]


def test_long_lines_of_spaces_are_rows_and_short_ones_are_not() -> None:
    assert cells_of(b" " * 15 + b"\n", quoted=False) == []
    assert cells_of(b" " * 40 + b"\n", quoted=False) == [Cell(0, 41, 1)]
    assert cells_of(b"   \n", quoted=True) == [Cell(0, 4, 1)]


@pytest.mark.parametrize(("data", "quoted"), [(b'a,b\nc,"' + b"x\n" * 200, True), (b"x" * 300, False)])
def test_endless_row_is_refused_before_it_fills_memory(
    data: bytes, quoted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_rows, "LONGEST_ROW", 100)
    with pytest.raises(LongRowError, match=f"the row at byte {4 if quoted else 0} is longer"):
        cells_of(data, quoted=quoted, block=16)
