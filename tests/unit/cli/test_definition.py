# SPDX-License-Identifier: Apache-2.0
"""Airflow's parser and argparse's have the same verbs, and knowing them costs next to nothing."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib import import_module

import pytest

from airflow_provider_raybatch import __version__
from airflow_provider_raybatch.cli.definition import airflow_commands, main, parser
from airflow_provider_raybatch.cli.verbs import VERBS, Verb
from airflow_provider_raybatch.get_provider_info import get_provider_info

EACH_VERB = pytest.mark.parametrize("verb", VERBS, ids=[verb.name for verb in VERBS])


def airflow_parser() -> object:
    from airflow.cli.cli_parser import get_parser

    get_parser.cache_clear()
    return get_parser()


def test_airflow_finds_the_verbs() -> None:
    (path,) = get_provider_info()["cli"]
    module, _, name = path.rpartition(".")
    assert getattr(import_module(module), name) is airflow_commands


def test_nothing_heavy_is_imported() -> None:
    """Airflow imports it at each start, which may take 50 ms more at most."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import airflow_provider_raybatch.cli.definition as one\n"
        "one.parser()\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('airflow_provider_raybatch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    roots, ours = (line.split() for line in done.stdout.splitlines())
    assert set(roots) <= {*sys.stdlib_module_names, "airflow_provider_raybatch"}
    assert all(name.startswith("airflow_provider_raybatch.cli") for name in ours[1:])


@EACH_VERB
@pytest.mark.parametrize("program", ["raybatch", "airflow raybatch"])
def test_examples_are_understood(verb: Verb, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = parser() if program == "raybatch" else airflow_parser()
    assert verb.examples
    for example in verb.examples:
        words = shlex.split(example.partition(" > ")[0])
        given = made.parse_args([*program.split()[1:], *words])  # type: ignore[attr-defined]
        assert vars(given)


@EACH_VERB
def test_help_shows_examples(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([verb.name, "--help"])
    shown = capsys.readouterr().out
    assert f"raybatch {verb.examples[0]}" in shown
    assert all(len(line) <= 120 for line in shown.splitlines())


@EACH_VERB
def test_help_has_no_markup(verb: Verb) -> None:
    """Airflow prints help by rich, which takes square brackets for markup; argparse formats percent signs."""
    texts = [verb.summary, verb.description, *(option.settings["help"] for option in verb.options)]
    assert not any(set(text) & set("[]%") for text in texts)


@pytest.mark.parametrize("words", [[], ["no-such-verb"], ["report"], ["show", "x", "--format", "xml"]])
def test_misuse_exits_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: raybatch" in capsys.readouterr().err


def test_an_error_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for call in (lambda: main(WORDS), lambda: run_in_airflow(WORDS)):
        with pytest.raises(SystemExit) as caught:
            call()
        assert caught.value.code == 1
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith("dataset: no finished dataset is at /nowhere, nor in a folder in it")
        assert err.count("\n") == 1


WORDS = ["show", "/nowhere"]


def test_a_name_that_no_file_can_have_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 300
    for words in (
        ["preview", "--dag", name],
        ["init", name],
        ["init", __file__, "--format", "csv", "-o", name],
    ):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 1
        out, err = capsys.readouterr()
        assert not out
        assert err.count("\n") == 1


def run_in_airflow(words: list[str]) -> None:
    given = airflow_parser().parse_args(["raybatch", *words])  # type: ignore[attr-defined]
    given.func(given)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"airflow-provider-raybatch {__version__}\n"


def test_a_reader_that_has_enough_is_no_error() -> None:
    """As with ``raybatch show ... | head -1``."""
    code = (
        "import sys, types, airflow_provider_raybatch.cli as cli\n"
        "from airflow_provider_raybatch.cli.definition import run_verb\n"
        "module = types.ModuleType('airflow_provider_raybatch.cli.lines')\n"
        "module.show = lambda options: [print('x' * 1000) for _ in range(10000)]\n"
        "sys.modules[module.__name__] = module\n"
        "run_verb('lines:show', None)"
    )
    command = (
        f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} | head -c 5; echo; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["xxxxx", "0"]
    assert not done.stderr


def test_a_missing_package_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.delitem(sys.modules, "airflow_provider_raybatch.job.input.survey", raising=False)
    with pytest.raises(SystemExit) as caught:
        main(["init", __file__, "--format", "csv"])
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith("pyarrow.parquet: it is not installed here")
