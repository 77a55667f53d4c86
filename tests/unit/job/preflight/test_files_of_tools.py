# SPDX-License-Identifier: Apache-2.0
"""Files as other tools write them: read as meant, or refused by a sentence that names what they are."""

from __future__ import annotations

import ast
import gzip
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input import content
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.preflight.input_check import sample
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.approved import AssertSentences
from tests.support.reading import listing_of, read_all
from tests.support.sources import look_at_source
from tests.support.specs import asking, spec

# Not there on the cluster's Python.
duckdb = pytest.importorskip("duckdb")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
ROWS = [{"id": 1, "text": "Grüße"}, {"id": 2, "text": "zwei; drei"}]


def looked(path: Path, **fields: Any) -> tuple[Source, list[Request], list[RowFailure]]:
    """Return what preflight makes of a file: the source, requests and failures."""
    whole = spec(**{"source": [str(path)], **asking("{row.text}", fields), **fields})
    source = look_at_source(whole)
    requests, failures, *_ = sample(whole, source, None)
    return source, requests, [failure for _, failure in failures]


def texts(path: Path, **fields: Any) -> list[str]:
    """Return the prompts of a file without failures."""
    _, requests, failures = looked(path, **fields)
    assert not failures
    return [str((request.messages or [{}])[-1].get("content")) for request in requests]


def refusal(path: Path, **fields: Any) -> str:
    with pytest.raises(PreflightError) as caught:
        looked(path, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


def duck(query: str, path: Path, options: str = "") -> Path:
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({query}) TO '{path}' {options}")
    return path


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]
MAPS = ", ".join(f"MAP {{'role': '{one['role']}', 'content': '{one['content']}'}}" for one in CHAT)
SPARK = pa.array([[list(one.items()) for one in CHAT]], pa.list_(pa.map_(pa.string(), pa.string())))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: duck(f"SELECT [{MAPS}] AS chat", path),
        lambda path: pq.write_table(pa.table({"chat": SPARK}), path),
        lambda path: pl.DataFrame({"chat": [CHAT]}).write_parquet(path),
        lambda path: duck(f"SELECT '{json.dumps(CHAT)}'::JSON AS chat", path),
    ],
    ids=["maps of DuckDB", "maps of Spark", "structs of Polars", "JSON of DuckDB"],
)
def test_chats_of_tools_are_read(tmp_path: Path, write: Callable[[Path], object]) -> None:
    write(tmp_path / "x.parquet")
    assert looked(tmp_path / "x.parquet", messages_column="chat")[1] == [Request(CHAT)]


def test_a_map_without_a_role_fails_its_row(tmp_path: Path) -> None:
    path = duck("SELECT [MAP {'content': 'x'}] AS chat", tmp_path / "x.parquet")
    (failure,) = looked(path, messages_column="chat")[2]
    assert failure.reason == "column 'chat' has a message without a role or a content"


class TestJson:
    def test_other_layouts_of_pandas_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_sentences: AssertSentences
    ) -> None:
        def said(**layout: Any) -> str:
            pd.DataFrame(ROWS).to_json(tmp_path / "x.json", **layout)
            sentence = refusal(tmp_path / "x.json")
            with monkeypatch.context() as patch:
                patch.setattr(content, "_LINE", 20)  # of large files no more is kept
                assert refusal(tmp_path / "x.json") == sentence
            return sentence

        assert_sentences(said)

    def test_lines_of_tools_are_read(self, tmp_path: Path) -> None:
        expected = [row["text"] for row in ROWS]
        pd.DataFrame(ROWS).to_json(tmp_path / "x.json", orient="records", lines=True)
        pl.DataFrame(ROWS).write_ndjson(tmp_path / "y.ndjson")
        pd.DataFrame(ROWS).to_csv(tmp_path / "z.csv", index=False)
        duck(f"SELECT * FROM read_csv('{tmp_path}/z.csv')", tmp_path / "z.json")
        assert texts(tmp_path / "x.json") == texts(tmp_path / "y.ndjson") == texts(tmp_path / "z.json")
        assert texts(tmp_path / "x.json") == expected

    @pytest.mark.parametrize(
        "rows",
        [
            [{"text": "a", "scores": {"0": 1}}],  # one row
            [{"text": {"0": "a"}, "n": {"0": "b"}}, {"text": {"0": "c"}, "n": {"0": "d"}}],  # two
            [{"text": {"a": 1}, "other": {"a": 1}}],
        ],
    )
    def test_rows_that_only_resemble_one_are_read(self, tmp_path: Path, rows: list[Any]) -> None:
        (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        assert len(texts(tmp_path / "x.jsonl")) == len(rows)


class TestCsv:
    @pytest.mark.parametrize("delimiter", [";", "\t", ","])
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-16-be"])
    @pytest.mark.parametrize("name", ["größe", "id"])
    def test_an_export_is_read_by_what_refusals_say(
        self, tmp_path: Path, delimiter: str, encoding: str, name: str
    ) -> None:
        """Each sentence has the options as a whole, so that what it says replaces those given before."""
        path, said = tmp_path / "x.csv", list[str]()
        lines = (f"{name};text;share", "1;zwei;0,5", '2;"Äpfel; Birnen";1,5', "3;Zoë;2")
        text = "\r\n".join((*lines, ""))
        text = text if delimiter == ";" else text.replace(",", ".").replace("; ", " ").replace(";", delimiter)
        path.write_bytes(text.encode(encoding))
        fields: dict[str, Any] = {}
        for _ in range(3):
            try:
                failures = looked(path, **fields)[2]
            except PreflightError as error:
                said.append(str(error))
            else:
                if not failures:
                    break
                said.append(failures[-1].reason)
            fields = {"csv_options": ast.literal_eval(re.findall(r"csv_options=(\{[^}]*\})", said[-1])[0])}
        birnen = "Äpfel; Birnen" if delimiter == ";" else "Äpfel Birnen"
        assert texts(path, **fields) == ["zwei", birnen, "Zoë"]
        assert len(said) == (delimiter != ",") + (not encoding.startswith("utf-8"))

    def test_a_header_with_a_comma_in_a_name_names_the_delimiter(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("id;text;share, in %\n1;a;2\n")
        for given, options in (
            ({}, "{'delimiter': ';'}"),
            ({"encoding": "cp1252"}, "{'encoding': 'cp1252', 'delimiter': ';'}"),
        ):
            said = refusal(tmp_path / "x.csv", csv_options=given)
            assert f"no column 'text'; set csv_options={options} if that separates them" in said

    @pytest.mark.parametrize("delimiter", [";", ","])
    def test_the_line_for_excel_is_named(self, tmp_path: Path, delimiter: str) -> None:
        text = f"\ufeffsep={delimiter}\r\nid{delimiter}text\r\n1{delimiter}a\r\n"
        (tmp_path / "x.csv").write_text(text, encoding="utf-8")
        assert refusal(tmp_path / "x.csv") == (
            f"source: the first line of FILE is 'sep={delimiter}', which Excel alone reads; remove the line."
        )

    @pytest.mark.parametrize("delimiter", [";", "\t", "|"])
    def test_another_delimiter_is_named_and_can_be_set(self, tmp_path: Path, delimiter: str) -> None:
        """Whether names have quotes or not."""
        expected = [row["text"] for row in ROWS]
        for quoting in (0, 1):
            path = tmp_path / "x.csv"
            pd.DataFrame(ROWS).to_csv(path, sep=delimiter, index=False, quoting=quoting)
            assert refusal(path) == (
                "source: the header of FILE has one column if commas separate them, and 2 with "
                f"{delimiter!r}; set csv_options={{'delimiter': {delimiter!r}}}, or ',' if that is meant."
            )
            assert texts(path, csv_options={"delimiter": delimiter}) == expected

    def test_other_delimiter_in_a_name_is_kept_where_said(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("text;or so\na\n")
        assert texts(tmp_path / "x.csv", csv_options={"delimiter": ","}, prompt="{row['text;or so']}") == [
            "a"
        ]

    def test_tab_separated_files_by_their_name(self, tmp_path: Path) -> None:
        for name in ("x.tsv", "x.tsv.gz"):
            pd.DataFrame(ROWS).to_csv(tmp_path / name, sep="\t", index=False)
            assert texts(tmp_path / name) == [row["text"] for row in ROWS]

    def test_text_of_another_encoding_says_what_to_set(self, tmp_path: Path) -> None:
        pd.DataFrame(ROWS).to_csv(tmp_path / "x.csv", index=False, encoding="cp1252")
        (failure,) = looked(tmp_path / "x.csv")[2]
        remedy = "set csv_options={'encoding': 'cp1252'}, or its own encoding"
        assert failure.reason == f"the row is not UTF-8 text; {remedy}"
        (failure,) = looked(tmp_path / "x.csv", csv_options={"header": ["id", "text"]})[2]
        assert "csv_options={'header': ['id', 'text'], 'encoding': 'cp1252'}, or" in failure.reason
        sentence = refusal(tmp_path / "x.csv", csv_options={"encoding": "ascii"})
        assert "FILE is not ascii text" in sentence
        (tmp_path / "y.csv").write_bytes("größe,text\n1,a\n".encode("cp1252"))
        assert "set csv_options={'encoding': 'cp1252'}, or its own" in refusal(tmp_path / "y.csv")

    def test_files_without_a_header(self, tmp_path: Path) -> None:
        pd.DataFrame(ROWS).to_csv(tmp_path / "x.csv", index=False, header=False)
        expected = [row["text"] for row in ROWS]
        assert texts(tmp_path / "x.csv", csv_options={"header": ["id", "text"]}) == expected
        assert texts(tmp_path / "x.csv", csv_options={"header": False}, prompt="{row.column_2}") == expected
        assert refusal(tmp_path / "x.csv", csv_options={"header": ["a", "b", "text"]}) == (
            "csv_options: header has 3 names, and the first row of FILE has 2 fields; name each column, or "
            "set delimiter."
        )

    def test_options_change_the_listing_where_they_are_set(self, tmp_path: Path) -> None:
        """So that rows of an attempt with others are not taken for the same."""
        (tmp_path / "x.csv").write_text("id,text\n1,a\n")
        plain, other = listing_of(tmp_path), listing_of(tmp_path, csv_options={"delimiter": ";"})
        assert plain.digest != other.digest

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    def test_a_repeated_header_is_a_dead_letter(self, tmp_path: Path, encoding: str) -> None:
        """As in files that were joined by `cat`, also with the byte order marks that Excel writes."""
        (tmp_path / "x.csv").write_bytes("id,text\n1,a\n".encode(encoding) * 2)
        _, requests, failures = looked(tmp_path / "x.csv", csv_options={"encoding": encoding})
        assert len(requests) == 2
        assert [failure.reason for failure in failures] == [
            "the row is the header line once more; remove it from the file"
        ]

    def test_a_single_column_may_have_its_name_as_a_value(self, tmp_path: Path) -> None:
        (tmp_path / "y.csv").write_text("text\ntext\n")
        assert texts(tmp_path / "y.csv") == ["text"]

    def test_a_null_of_databases_is_null(self, tmp_path: Path) -> None:
        r"""MySQL, PostgreSQL and Hive write `\N`."""
        (tmp_path / "x.csv").write_text("id,text\n1,\\N\n\\N,b\\N\n")
        (failure,) = looked(tmp_path / "x.csv")[2]
        assert failure.reason == "column 'text' is null"
        _, rows, columns = read_all(listing_of(tmp_path))
        assert rows == columns == [{"id": "1", "text": None}, {"id": None, "text": "b\\N"}]

    def test_options_of_another_format_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')
        assert refusal(tmp_path / "x.jsonl", csv_options={"delimiter": ";"}) == (
            "csv_options: FILE is jsonl, not csv; leave csv_options out, or set format='csv'."
        )


def xlsx(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:  # in the order of openpyxl
        for name in ("docProps/app.xml", "xl/workbook.xml", "[Content_Types].xml"):
            file.writestr(name, "<x/>")


def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.csv", "id,text\n1,a\n")


def parquet(path: Path) -> None:
    pl.DataFrame(ROWS).write_parquet(path)


def feather(path: Path) -> None:
    pl.DataFrame(ROWS).write_ipc(path)


def database(path: Path) -> None:
    duckdb.connect(path).close()


def holds(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def test_another_format_under_a_name_of_text_is_named(
    tmp_path: Path, assert_sentences: AssertSentences
) -> None:
    def said(write: Callable[[Path], object]) -> str:
        names = {"csv": "CSV", "jsonl": "JSON Lines"}
        for kind in names:
            (tmp_path / f"x.{kind}").unlink(missing_ok=True)
            write(tmp_path / f"x.{kind}")
        of_csv, of_lines = (refusal(tmp_path / f"x.{kind}") for kind in names)
        assert of_lines == of_csv.replace("not CSV", "not JSON Lines")
        return of_csv

    assert_sentences(said)


def test_json_lines_under_a_name_of_csv_are_named(tmp_path: Path) -> None:
    pl.DataFrame(ROWS).write_ndjson(tmp_path / "x.csv")
    assert refusal(tmp_path / "x.csv") == "source: FILE is not CSV but JSON Lines; set format='jsonl'."


def test_headers_that_begin_like_another_format_are_read(tmp_path: Path) -> None:
    for number, name in enumerate(("PAR1", "ORCID", "Object", "BZh9", "{curly}", "[x]")):
        (tmp_path / f"{number}.csv").write_text(f"{name},text\n1,a\n")
        assert texts(tmp_path / f"{number}.csv") == ["a"]


def test_rows_that_look_like_another_format_are_read(tmp_path: Path) -> None:
    """The sign of an archive is a part of "mustard", and columns may have the names that pandas uses."""
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"text": "x" * 246 + "mustard"}) + "\n")
    assert path.read_bytes()[257:262] == b"ustar"
    assert texts(path) == ["x" * 246 + "mustard"]
    for row in ({"schema": None, "data": "a"}, {"schema": {"fields": []}, "data": "a"}):
        path.write_text(json.dumps(row))
        assert texts(path, prompt="{row.data}") == ["a"]
    path.write_text(json.dumps({"columns": "a", "index": 3, "data": "b"}))
    assert texts(path, prompt="{row.data}") == ["b"]


def test_another_format_under_a_name_of_parquet_is_named(tmp_path: Path) -> None:
    pd.DataFrame(ROWS).to_csv(tmp_path / "x.parquet", index=False)
    assert (
        refusal(tmp_path / "x.parquet")
        == "source: FILE is not Parquet but text; set format to 'csv' or 'jsonl'."
    )
    archive(tmp_path / "x.parquet")
    assert "is not Parquet but a zip archive; unpack it" in refusal(tmp_path / "x.parquet")


def test_parquet_that_is_named_as_packed_is_named(tmp_path: Path) -> None:
    """Many tools name a file after the compression inside of it; one that is packed is read."""
    parquet(tmp_path / "x.parquet.gz")
    assert refusal(tmp_path / "x.parquet.gz") == (
        "source: FILE is not gzip but Parquet; remove .gz from its name."
    )
    parquet(tmp_path / "y.parquet")
    (tmp_path / "x.parquet.gz").write_bytes(gzip.compress((tmp_path / "y.parquet").read_bytes()))
    assert texts(tmp_path / "x.parquet.gz") == [row["text"] for row in ROWS]


def test_types_that_arrow_lacks_are_refused(tmp_path: Path) -> None:
    """Polars writes integers of 128 bits, which pyarrow can't read."""
    frame = pl.DataFrame(ROWS).with_columns(pl.col("id").cast(pl.Int128))
    frame.write_parquet(tmp_path / "x.parquet")
    assert "has a type that Arrow can't read (Integers with more than 64 bits" in refusal(
        tmp_path / "x.parquet"
    )
