# SPDX-License-Identifier: Apache-2.0
"""The DAG file that is written for a file of rows."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import conf

from airflow_provider_raybatch.cli.definition import main
from airflow_provider_raybatch.contract.location import reads_into
from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.dataset import open_dataset
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from airflow_provider_raybatch.operators.arguments import build_spec
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.image_files import image_file
from tests.support.s3_server import serving
from tests.support.whole_job import attempt, without_cluster

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
    return build_spec(task.arguments())


def operator_text(path: str) -> str:
    """What the DAG file asks."""
    task = operator(path)
    return str(task.prompt or [step["prompt"] for step in task.steps])


def answered(task: Any, patch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The dataset of a run of the operator."""
    without_cluster(patch)
    spec = rendered(task)
    place = LocalFolder(spec.destination)
    attempt(place, 1, spec.source[0], **spec.model_dump(exclude_unset=True, exclude={"source"}))
    return list(open_dataset(place.uri).to_arrow().to_pylist())


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
    assert shown.endswith(f"  raybatch show {tmp_path}/my_companies_responses\n")
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


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("customer_id", ["a", "b", "b"]),
        ("CUSTOMER ID", ["Ada Lovelace", "Bob", "Cy"]),
        ("CustomerID", ["Ada Lovelace", "Bob", "Cy"]),
        ("uuid", ["one", "two", "three"]),
        ("number", ["C-001", "C-002", "C-003"]),
        ("made", ["2026-11-01T10:00:00Z", "2026-11-01T10:00:01Z", "2026-11-02T10:00:00Z"]),
        ("digest", ["9f" * 40, "8a" * 40, "7b" * 40]),
        ("ordinal", [1, 2, 3]),
    ],
)
def test_ids_stay_out_of_the_prompt_and_equal_rows_equal(
    name: str, column: str, values: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by its name nor by its values is a column of ids asked about, however long its texts."""
    rows = [{column: value, "product": "tea", "size": 4} for value in values]
    if name == "a.csv":
        lines = (",".join(map(str, row.values())) for row in rows)
        Path(name).write_text("\n".join((f"{column},product,size", *lines, "")))
    else:
        write(name, rows)
    main(["init", name])
    assert "it asks about 'product'." in capsys.readouterr().out
    assert len(set(prompts(rendered(operator("a_dag.py"))))) == 1


def test_a_file_of_ids_and_numbers_is_asked_about_its_numbers() -> None:
    main(["init", write("a.jsonl", [{"id": "C-1", "size": 4.5}, {"id": "C-2", "size": 4.5}])])
    assert prompts(rendered(operator("a_dag.py"))) == ["Describe this in one sentence.\nsize: 4.5"] * 2
    main(["init", write("b.jsonl", [{"id": "C-1"}, {"id": "C-2"}])])  # it has nothing else
    assert prompts(rendered(operator("b_dag.py")))[0].endswith("id: C-1")


PNG = image_file()
IMAGES = {
    "bytes": PNG,
    "hub": {"bytes": PNG, "path": None},
    "list": [PNG, PNG],
    "data": f"data:image/png;base64,{base64.b64encode(PNG).decode()}",
    "path": "PLACE/red.PNG",
}


@pytest.mark.parametrize("value", IMAGES)
@pytest.mark.parametrize("words", [(), ("--steps",)])
def test_images_are_found_and_shown_to_the_model(
    value: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "red.PNG").write_bytes(PNG)
    image = str(tmp_path / "red.PNG") if value == "path" else IMAGES[value]
    pq.write_table(pa.Table.from_pylist([{"photo": image, "note": "a cat"}]), "a.parquet")
    main(["init", "a.parquet", *words])
    rows = answered(operator("a_dag.py"), monkeypatch)
    response = rows[0]["answer_response" if words else "response"]
    assert response.count("[8x6 #ff0000]") == (2 if value == "list" else 1)
    assert "photo" not in operator_text("a_dag.py")
    assert "note: a cat" in response


def test_hosts_of_images_are_named_and_images_alone_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    urls = ["https://img.example.org/a.jpg?w=4", None, "https://cdn.example.org/b.webp"]
    main(["init", write("a.jsonl", [{"id": number, "url": url} for number, url in enumerate(urls)])])
    assert "it asks about the images of 'url'." in capsys.readouterr().out
    spec = rendered(operator("a_dag.py"))
    assert (spec.images, spec.image_hosts) == (["url"], ["cdn.example.org", "img.example.org"])
    assert spec.prompt == "Describe the image in one sentence."
    with pytest.raises(SystemExit):
        main(["init", "a.jsonl", "--embed", "--force"])
    assert "a.jsonl has no column with text; leave --embed out." in capsys.readouterr().err
    lists = [{"of": ["https://a.org/1.png", "https://b.org/2.png"], "at": {"path": "https://c.org/3.png"}}]
    main(["init", write("c.jsonl", lists)])
    assert rendered(operator("c_dag.py")).image_hosts == ["a.org", "b.org", "c.org"]
    main(["init", write("d.jsonl", [{"url": "https://[d.org/1.png"}, {"url": "https:///2.png"}])])
    assert not rendered(operator("d_dag.py")).images
    digests = [{"sum": b"no image"}, {"sum": b"either"}]
    main(["init", write("b.parquet", [{**row, "text": "some words"} for row in digests])])
    assert not rendered(operator("b_dag.py")).images


def test_embed_makes_a_vector_of_the_longest_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["init", write("a.jsonl", [{"id": "T-1", "kind": "tea", "text": "{{ long }} story"}]), "--embed"])
    assert "it embeds 'text'." in capsys.readouterr().out
    task = operator("a_dag.py")
    assert (task.dag_id, task.task_id, rendered(task).prompt) == ("embed_a", "embed", "{row.text}")
    assert len(answered(task, monkeypatch)[0]["embedding"]) > 1


@pytest.mark.parametrize("column", ["text", *ODD_NAMES])
def test_steps_ask_and_check(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The column's name is never code in a step, either."""
    main(["init", write("a.jsonl", [{"id": "T-1", column: "a long story"}]), "--steps"])
    (row,) = answered(operator("a_dag.py"), monkeypatch)
    assert row["answer_response"].endswith(": a long story")
    assert row["check_response"] in {"yes", "no"}
    assert "T-1" not in row["answer_response"]


def test_embed_and_steps_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["init", write("a.jsonl", [{"x": "y"}]), "--embed", "--steps"])
    assert capsys.readouterr().err == "embed: steps generate text, and no vectors; give one of the two.\n"


@pytest.mark.parametrize("words", [(), ("--embed",), ("--steps",)])
def test_the_file_passes_lints(words: tuple[str, ...]) -> None:
    main(["init", write("a.jsonl", [{"id": 1, "text": "yes, 'it' \"is\""}]), "--model", "some/model", *words])
    config = Path(__file__).parents[3] / "pyproject.toml"
    for rules in (("--config", config, "--ignore=D,I,E501"), ("--isolated", "--select=I")):
        ruff = Path(sys.executable).with_name("ruff")
        assert not subprocess.run([ruff, "check", "--no-cache", *rules, "a_dag.py"]).returncode


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le", "utf-16-be"])
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


def test_accents_of_a_name_are_left_out() -> None:
    main(["init", write("Größe à Łódź.jsonl", [{"x": "y"}])])
    assert [path.name for path in Path().glob("*_dag.py")] == ["gro_e_a_odz_dag.py"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_nulls_are_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init", write(name, [{"id": 1, "text": "yes"}, {"id": None, "text": None}])])
    note = "Note: 'text' is null in 1 of the first 2 rows, which would fail.\n"
    assert note in capsys.readouterr().out


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
