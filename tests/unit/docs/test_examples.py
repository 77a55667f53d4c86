# SPDX-License-Identifier: Apache-2.0
"""Every example of the documentation runs, as far as that needs no cluster."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import yaml

from airflow_provider_raybatch.job.engine.echo_answers import vector_of
from tests.support.datasets import inferred

from ...support.documents import DOCS, PAGES, ROOT, Block, blocks, commands

PARSE_DAGS = Path(__file__).with_name("parse_dags.py")
PYTHON = blocks("python")
DAGS = [block for block in PYTHON if "@dag" in block.text]
TESTS = [block for block in PYTHON if "def test_" in block.text]
MODULES = [block for block in PYTHON if block.text.startswith("# ") and block not in TESTS]
# The blocks of workflows.md are one program; tests/unit/workflows/test_page.py runs it.
READERS = [b for b in PYTHON if b not in [*DAGS, *MODULES, *TESTS] and b.page.name != "workflows.md"]
SHELL = blocks("bash")
ARGUMENTS = [b for b in blocks("text") if b.page == DOCS / "recipes.md" and re.match(r"\w+=", b.text)]
NAME = re.compile(r"# (\w+\.py)\n")


def file_name(block: Block) -> str:
    named = NAME.match(block.text)
    return named[1] if named else f"{block.page.stem.lower()}_{block.line}.py"


def parsed(folder: Path, home: Path) -> dict[str, Any]:
    """Return Airflow's result of parsing the DAG files in a folder."""
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", str(PARSE_DAGS), str(folder)],
        env={**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": f"{folder}:{ROOT}"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Airflow's result of parsing all examples."""
    folder, home = tmp_path_factory.mktemp("dags"), tmp_path_factory.mktemp("home")
    for block in [*DAGS, *MODULES]:
        (folder / file_name(block)).write_text(block.text, encoding="utf-8")
    return parsed(folder, home)


def test_there_are_examples() -> None:
    assert len(DAGS) >= 15
    assert {block.page.name for block in DAGS} >= {"README.md", "quickstart.md", "recipes.md", "failures.md"}


def test_dags_can_be_imported(bag: dict[str, Any]) -> None:
    assert bag["errors"] == {}


@pytest.mark.parametrize("block", DAGS, ids=lambda block: block.name)
def test_block_makes_a_dag_whose_tasks_are_accepted(bag: dict[str, Any], block: Block) -> None:
    made = bag["dags"].get(file_name(block), [])
    assert made
    assert [problem for problem in bag["problems"] if problem.split(".")[0] in made] == []


@pytest.mark.parametrize("block", ARGUMENTS, ids=lambda block: block.name)
def test_arguments_in_recipes_are_accepted(block: Block) -> None:
    from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

    needed = {"source": "s3://lake/in/", "prompt": "{row.text}", "model": "m", "destination": "s3://lake/o/"}
    given = eval(f"dict({block.text})")
    made = RayBatchInferenceOperator(task_id="label", **{**needed, **given})
    assert {name: getattr(made, name) for name in given} == given


@pytest.mark.parametrize("block", READERS, ids=lambda block: block.name)
def test_other_python_runs_on_a_dataset(block: Block, tmp_path: Path) -> None:
    found: dict[str, Any] = {"result": inferred(tmp_path, [{"id": 1, "response": "one"}])}
    exec(block.text, found)
    assert found["table"].to_pylist() == [{"id": 1, "response": "one"}]
    assert found["relation"].fetchall() == [(1, "one")]


def test_tests_in_examples_find_a_mistake(tmp_path: Path) -> None:
    (block,), (dag,) = TESTS, [block for block in DAGS if block.page.name == "quickstart.md"]
    (tmp_path / "dags").mkdir()
    (tmp_path / "test_dags.py").write_text(block.text, encoding="utf-8")
    (tmp_path / "dags/right.py").write_text(dag.text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    found = []
    for engine in ("echo", "{{ 'ecko' }}"):
        (tmp_path / "dags/right.py").write_text(dag.text.replace('"echo"', f'"{engine}"'), encoding="utf-8")
        done = subprocess.run(
            [*command, str(tmp_path / "test_dags.py")],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        found.append((done.returncode, "engine: it must be" in done.stdout))
    assert found == [(0, False), (1, True)]


def function(name: str) -> Any:
    """Return a function of an example."""
    (block,) = [block for block in MODULES if f"def {name}(" in block.text]
    found: dict[str, Any] = {}
    exec(block.text, found)
    return found[name]


def test_functions_in_examples_make_requests_and_columns() -> None:
    made = function("ask")({"country": "DE", "text": "Lange Rede"})
    assert made["messages"][-1] == {
        "role": "user",
        "content": "Name the industry and your confidence: Lange Rede",
    }
    assert made["sampling"] == {"max_tokens": 30}
    made = function("parse")({"known_label": "Energy"}, "Banking | 0.9")
    assert made == {"label": "Banking", "score": 0.9, "is_new": True}


# Shell.


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.name)
def test_shell_commands_exist(block: Block, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    for words in commands(block):
        program, *rest = words
        check = CHECKS.get(program)
        assert check is not None, f"no test knows the program of {words}"
        check(rest)


def check_make(words: list[str]) -> None:
    targets = {word for word in words if "=" not in word}
    assert targets <= make_targets()


def make_targets() -> set[str]:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return set(phony.split())


def check_airflow(words: list[str]) -> None:
    from airflow.cli.cli_parser import get_parser

    get_parser().parse_args(words)  # exits if it does not understand


def check_raybatch(words: list[str]) -> None:
    from airflow_provider_raybatch.cli.definition import parser

    parser().parse_args(words[: words.index(">")] if ">" in words else words)


def check_pip(words: list[str]) -> None:
    assert words[0] == "install"
    known = set(metadata.metadata("airflow-provider-raybatch").get_all("Provides-Extra") or [])
    for requirement in words[1:]:
        extras = re.fullmatch(r"\.(?:\[([\w,-]+)\])?|pre-commit|build", requirement)
        assert extras is not None, requirement
        assert set(filter(None, (extras[1] or "").split(","))) <= known


def check_python(words: list[str]) -> None:
    match words:
        case ["-c", code]:
            compile(code, "-c", "exec")
            for module in re.findall(r"from ([\w.]+) import", code):
                __import__(module)
        case ["-m", module, *_] if module.startswith(("airflow_provider_raybatch", "tests.")):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        case ["-m", "build" | "pytest" | "venv", *rest]:
            assert all((ROOT / path).exists() for path in rest if path.startswith("tests/"))
        case [script, *_]:
            assert (ROOT / script).is_file()


def check_script(words: list[str]) -> None:
    stages = (ROOT / ".ci/checks").read_text(encoding="utf-8")
    assert [stage for stage in words if f"\n{stage}() {{" not in stages] == []


def check_files(words: list[str]) -> None:
    for option, file in itertools.pairwise(words):
        if option in {"-f", "--file"} and "://" not in file:
            assert (ROOT / file).is_file(), file


CHECKS = {
    "docker": check_files,
    "helm": check_files,
    "make": check_make,
    "airflow": check_airflow,
    "pip": check_pip,
    "raybatch": check_raybatch,
    "python": check_python,
    ".venv/bin/python": check_python,
    ".ci/checks": check_script,
    "export": lambda words: None,
    "mkdir": lambda words: None,
    "cp": lambda words: None,
    "source": lambda words: None,
    "pre-commit": lambda words: None,
    "git": lambda words: None,
    "kubectl": check_files,
    "curl": lambda words: None,  # calls of the Batch API, which its own tests compare with its routes
}


def test_connection_in_the_environment_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_raybatch.hooks.ray import RayHook

    (words,) = [
        words for block in SHELL for words in commands(block) if words[-1].startswith("AIRFLOW_CONN_")
    ]
    name, _, value = words[-1].partition("=")
    document = json.loads(value)
    del document["extra"]["ca_bundle"]  # no such file here
    monkeypatch.setenv(name, json.dumps(document))
    assert RayHook("ray_default").get_address().base == "https://ray.example.com/prod/"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_two_commands_are_those_of_ci(page: str) -> None:
    shown = {tuple(words) for block in SHELL if block.page == ROOT / page for words in commands(block)}
    assert {("make", "demo"), ("make", "test")} <= shown
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert {"make demo", "make test"} <= set(steps)


def test_other_blocks_are_marked() -> None:
    """A block that no test runs is marked as text or data."""
    written = [page for page in PAGES if page.parent == ROOT or page.is_relative_to(DOCS)]
    unknown = blocks("", "sh", "shell", "console", "py")
    assert [block.name for block in unknown if block.page in written] == []


def test_readme_example_has_a_destination_for_each_run() -> None:
    """Also if it runs twice a day, or without a logical date."""
    (block,) = [block for block in DAGS if block.page == ROOT / "README.md"]
    destinations = set()
    for minute in (0, 1):
        found: dict[str, Any] = {}
        exec(block.text.replace("\nlabel_companies()", "\nlabelled = label_companies()"), found)
        label = found["labelled"].get_task("label")
        run_after = datetime(2026, 1, 1, 12, minute, tzinfo=UTC)
        label.render_template_fields({"dag_run": SimpleNamespace(run_after=run_after), "params": {}})
        assert label.source == "s3://lake/customers/2026-01-01/"
        destinations.add(label.destination)
    assert destinations == {f"s3://lake/industries/20260101T120{minute}00/" for minute in (0, 1)}


def test_hooks_of_pre_commit_run_what_exists() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    for repository in config["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            assert {"id", "name", "entry", "language"} <= set(hook)
            program, *rest = shlex.split(hook["entry"])
            tool = program.removeprefix(".venv/bin/")
            assert Path(sys.executable).with_name(tool).is_file(), program
            assert [word for word in rest if word.startswith("tests/") and not (ROOT / word).is_file()] == []


def test_vectors_are_found_in_duckdb(tmp_path: Path) -> None:
    texts = ["a red fox", "a red dog", "deep blue sea"]
    kind = pa.list_(pa.float32(), 16)
    vectors = pa.array([vector_of(text.split(), 16, {}) for text in texts], kind)
    rows = pa.table({"id": [1, 2, 3], "text": texts, "embedding": vectors})
    database = function("search_table")(
        inferred(tmp_path, rows.to_pylist(), rows.schema), str(tmp_path / "db")
    )
    (nearest, _), (farthest, _) = function("nearest")(database, 1)
    assert (nearest, farthest) == (2, 3)


def test_unsure_labels_are_for_review(tmp_path: Path) -> None:
    sure = [0.1, 0.5, 0.95]
    rows = pa.table({
        "id": [1, 2, 3],
        "label": ["fine", "toxic", "toxic"],
        "probability": [0.9, 0.5, 0.95],
        "probabilities": [{"toxic": one, "fine": 1 - one} for one in sure],
    })
    found = function("for_review")(inferred(tmp_path, rows.to_pylist(), rows.schema))
    assert found == [(2, "toxic", 0.5)]


def test_best_passages_are_found_in_duckdb(tmp_path: Path) -> None:
    rows = pa.table({
        "id": [1, 2],
        "passages": [["a", "b", "c"], ["d"]],
        "ranking": [[{"index": 2, "score": 0.75}, {"index": 0, "score": 0.5}], [{"index": 0, "score": 0.25}]],
    })
    found = function("best_passages")(inferred(tmp_path, rows.to_pylist(), rows.schema))
    assert found == [(1, "c", 0.75), (1, "a", 0.5), (2, "d", 0.25)]
