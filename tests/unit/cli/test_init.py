# SPDX-License-Identifier: Apache-2.0
"""The DAG file that is written for a file of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import conf

from airflow_provider_raybatch.cli.definition import main
from airflow_provider_raybatch.contract.location import reads_into
from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from airflow_provider_raybatch.operators.arguments import ARGUMENTS, build_spec
from tests.support.s3_server import serving

ODD_NAMES = [
    "__class__", "it's", 'a "quoted" name', "two\nlines", "back\\slash", "{brace}", "{{ ds }}", "{% raw %}",
    "'); import os #", "\u202eturned", "\x1b[31mred", "a]b", "Größe", "{row.x}", '"""',
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, rows: list[dict[str, Any]]) -> str:
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), name)
    else:
        Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return name


def operator(path: str) -> Any:
    """The operator of a DAG file, which Airflow loads."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(Path(path).absolute()), safe_mode=False)
    assert not bag.import_errors
    (dag,) = bag.dags.values()
    (task,) = dag.tasks
    return task


def rendered(task: Any) -> Any:
    """The spec of a run."""
    from airflow_provider_raybatch.cli.rendering import XComs, render, run_date, template_context

    context = template_context(task, run_date("2026-11-02"), XComs(()), {}, -1)
    task, failures = render(task, context)
    assert not failures
    return build_spec({name: getattr(task, name) for name in ARGUMENTS})


def prompts(spec: Any) -> list[str]:
    listing = resolve(spec, None)
    surveyed = survey(listing, None)
    rows = [
        row for chunk in cut(surveyed, 10, 10) for row in Reader(listing, None, None).read(chunk).rows
    ]  # fmt: skip
    return [RowTemplate(spec.prompt).render(row) for row in rows]  # type: ignore[arg-type]


def test_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("My Companies.csv").write_text("number,company,city\n1,SAP,Walldorf\n2,Vestas,Aarhus\n")
    main(["init", "My Companies.csv"])
    shown = capsys.readouterr().out
    assert "Wrote my_companies_dag.py: 2 rows, 3 columns; it asks about 'company', 'city'." in shown
    assert "raybatch preview --dag my_companies_dag.py\n" in shown
    folder = conf.get("core", "dags_folder")
    assert f"  mkdir -p {folder} && cp my_companies_dag.py {folder}/\n" in shown
    assert "  airflow dags test ask_about_my_companies\n" in shown
    assert shown.endswith(f"  raybatch rows {tmp_path}/my_companies_responses\n")
    spec = rendered(operator("my_companies_dag.py"))
    assert spec.source == [f"{tmp_path}/My Companies.csv"]
    assert spec.destination == f"{tmp_path}/my_companies_responses/20261102T000000"
    assert spec.engine == "echo"
    assert prompts(spec)[0] == "Describe this in one sentence.\ncompany: SAP\ncity: Walldorf"
    text = Path("my_companies_dag.py").read_text()
    assert "airflow connections add ray_default" in text
    assert "'number', 'company', 'city'" in text


def test_a_file_in_the_dag_folder_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write("a.jsonl", [{"x": "y"}])
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path))
    main(["init", source])
    assert "cp " not in capsys.readouterr().out
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))
    (tmp_path / "dags").mkdir()
    main(["init", source, "--force"])
    assert f"  cp a_dag.py {tmp_path}/dags/\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
@pytest.mark.parametrize("column", ODD_NAMES)
def test_a_column_is_never_code(name: str, column: str) -> None:
    main(["init", write(name, [{column: "some text"}])])
    spec = rendered(operator("a_dag.py"))
    assert prompts(spec)[0].endswith(": some text")


def test_a_name_that_no_template_can_have_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    main(["init", write("a.jsonl", [{"both ' and \"": "x", "": "y", "fine": "z"}])])
    assert "it asks about 'fine'." in capsys.readouterr().out
    assert prompts(rendered(operator("a_dag.py")))[0].endswith("fine: z")


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_thousands_of_columns(name: str) -> None:
    main(["init", write(name, [{f"column {number}": f"text {number}" for number in range(3000)}])])
    text = Path("a_dag.py").read_text()
    assert "'column 19', and 2,980 more" in text
    assert len(text) < 4000
    assert prompts(rendered(operator("a_dag.py")))[0].endswith("column 1002: text 1002")


def test_columns_without_text_are_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    main(["init", write("a.parquet", [{"x": 1, "y": 2.5}])])
    assert prompts(rendered(operator("a_dag.py")))[0].endswith("x: 1\ny: 2.5")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_columns_with_the_longest_texts_are_asked_about(name: str) -> None:
    row = {"id": "T", "first name": "Zoë Quint", "city": "Lodz", "note": "", "message": "a long story here"}
    if name == "a.csv":
        Path(name).write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    else:
        write(name, [row])
    main(["init", name])
    # All but the id, which has less than a tenth.
    ending = "\nfirst name: Zoë Quint\ncity: Lodz\nmessage: a long story here"
    assert prompts(rendered(operator("a_dag.py")))[0].endswith(ending)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_another_encoding(encoding: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_bytes("name;city\r\nJürgen;Köln\r\n".encode(encoding))
    main(["init", "a.csv"])
    assert f"Note: the text is not UTF-8, and {encoding!r} is a guess" in capsys.readouterr().out
    assert prompts(rendered(operator("a_dag.py")))[0].endswith("name: Jürgen\ncity: Köln")


def test_rows_that_can_not_be_read_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text("name,city\nSAP,Walldorf\nSAP\n")
    main(["init", "a.csv"])
    note = "Note: 1 of the first 2 rows can't be read and would fail (the row has 1 field"
    assert note in capsys.readouterr().out


def test_a_first_line_of_numbers_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text("1,-2.5,3\n4,5,6\n")
    Path("years.csv").write_text("name,2025,2026\nSAP,1,2\n")
    main(["init", "a.csv"])
    assert "Note: the first line is read as names of columns, such as '1';" in capsys.readouterr().out
    main(["init", "years.csv"])
    assert "first line" not in capsys.readouterr().out


def test_quotes_are_double_where_they_can_be() -> None:
    main(["init", write("a.jsonl", [{"x": "y", "it's": 'a "z"'}])])
    text = Path("a_dag.py").read_text()
    assert 'sampling={"temperature": 0, "max_tokens": 64},' in text
    assert '"Describe this in one sentence.\\n"' in text
    assert operator("a_dag.py").prompt.endswith("it's: {row[\"it's\"]}")


def test_accents_of_a_name_are_left_out() -> None:
    main(["init", write("Größe à Łódź.jsonl", [{"x": "y"}])])
    assert [path.name for path in Path().glob("*_dag.py")] == ["gro_e_a_odz_dag.py"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_nulls_are_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init", write(name, [{"id": 1, "text": "yes"}, {"id": None, "text": None}])])
    note = "Note: 'text' is null in 1 of the first 2 rows, which would fail.\n"
    assert note in capsys.readouterr().out


def test_another_delimiter() -> None:
    Path("a.csv").write_text("name;city\nSAP;Walldorf\n")
    main(["init", "a.csv"])
    spec = rendered(operator("a_dag.py"))
    assert spec.csv_options.delimiter == ";"
    assert prompts(spec)[0].endswith("name: SAP\ncity: Walldorf")


def test_with_a_model_and_connections() -> None:
    source = write("a.jsonl", [{"x": "y"}])
    words = ["--model", "some/model", "--conn-id", "gpus", "--destination", "s3://lake/out", "-o", "b.py"]
    main(["init", source, *words])
    task = operator("b.py")
    assert (task.ray_conn_id, task.model, task.engine) == ("gpus", "some/model", "vllm")
    assert rendered(task).destination == "s3://lake/out/20261102T000000"


def test_paths_of_the_shell_become_absolute(tmp_path: Path) -> None:
    """The job runs in another folder."""
    (tmp_path / "models/a/b").mkdir(parents=True)
    source = write("a.jsonl", [{"x": "y"}])
    main(["init", f"models/../{source}", "--model", "models/a/b", "--destination", "out/"])
    spec = rendered(operator("a_dag.py"))
    assert (spec.source, spec.model) == ([f"{tmp_path}/a.jsonl"], f"{tmp_path}/models/a/b")
    assert spec.destination == f"{tmp_path}/out/20261102T000000"


def test_a_destination_lies_beside_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside of it, the next run would read it as a source."""
    with serving() as server:
        server.open_to_this_process(monkeypatch)
        bucket = server.new_bucket()
        server.client().put_object(Bucket=bucket, Key="in/a.jsonl", Body=b'{"x": "y"}\n')
        main(["init", f"s3://{bucket}/in/", "-o", "s3.py"])
    assert operator("s3.py").destination.startswith(f"s3://{bucket}/in_responses/{{{{")
    Path("folder").mkdir()
    write("folder/a.jsonl", [{"x": "y"}])
    main(["init", "folder/"])
    assert operator("folder_dag.py").destination.startswith(f"{Path.cwd()}/folder_responses/{{{{")


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("parts/*/*.jsonl", "parts/rows_responses"),
        ("parts/**", "rows_responses"),
        ("parts/**/*.jsonl", "rows_responses"),
        ("parts/day=1/a*.jsonl", "parts/day=1/a_responses"),
    ],
)
def test_a_glob_has_a_destination_that_it_does_not_read(
    source: str, destination: str, tmp_path: Path
) -> None:
    Path("parts/day=1").mkdir(parents=True)
    write("parts/day=1/a.jsonl", [{"x": "y"}])
    main(["init", source, "-o", "a.py"])
    assert operator("a.py").destination.startswith(f"{tmp_path}/{destination}/{{{{")
    assert not reads_into(f"{tmp_path}/{source}", f"{tmp_path}/{destination}")


def test_a_whole_bucket_needs_a_destination(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as server:
        server.open_to_this_process(monkeypatch)
        bucket = server.new_bucket()
        server.client().put_object(Bucket=bucket, Key="a.jsonl", Body=b'{"x": "y"}\n')
        with pytest.raises(SystemExit):
            main(["init", f"s3://{bucket}/"])
        assert f"destination: s3://{bucket}/ reads a whole bucket" in capsys.readouterr().err
        main(["init", f"s3://{bucket}/", "--destination", "s3://out/answers", "-o", "a.py"])
    assert operator("a.py").destination.startswith("s3://out/answers/{{")


def test_a_file_is_replaced_only_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    source = write("a.jsonl", [{"x": "y"}])
    Path("a_dag.py").write_text("mine")
    with pytest.raises(SystemExit):
        main(["init", source])
    assert "output: a_dag.py exists already" in capsys.readouterr().err
    assert Path("a_dag.py").read_text() == "mine"
    main(["init", source, "--force"])
    assert operator("a_dag.py").task_id == "ask"
    with pytest.raises(SystemExit):
        main(["init", source, "-o", "dags/a.py"])
    assert capsys.readouterr().err.endswith(
        "(No such file or directory); name a file in a folder that exists.\n"
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"", "has no rows; give one"),
        ("a.csv", b"name,city\n", "has no rows below its first line, which is the header"),
        ("a.jsonl", b"", "has no rows"),
        ("a.parquet", b"", "is not a readable Parquet file"),
        ("a.parquet", b"name,city\n", "is not Parquet but text"),
        ("a.csv", b"%PDF-1.7\n", "is not CSV but PDF"),
        ("a.csv", b'name\n"SAP\n', "ends inside a quoted field"),
        ("a.csv", b"name,name\nSAP,x\n", "has the column 'name' 2 times"),
        ("a.jsonl", b"PK\x03\x04", "is not JSON Lines but a zip archive"),
        ("a.jsonl", b"{}\n", "has no column that a prompt can name"),
        ("a.jsonl", b"name,city\nSAP,x\n", "none of the first 2 rows of"),
        ("a.xlsx", b"x", "a.xlsx is an Excel workbook by its name; save it as CSV."),
        ("a.txt", b"x", "has no known extension"),
        ("a.csv", b"\x89PNG\r\n\x1a\n\0\0", "not UTF-8"),
        ("a.jsonl", None, "nothing is at"),
        ("{{ a }}.jsonl", b'{"x": 1}\n', "still has a Jinja expression"),
    ],
)
def test_what_is_no_data_is_one_sentence(
    name: str, content: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        main(["init", name])
    assert caught.value.code == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not list(Path().glob("*_dag.py"))
