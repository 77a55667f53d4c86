# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys

import pytest

from airflow_provider_raybatch.cluster.jobs_api.errors import PackageError
from airflow_provider_raybatch.cluster.submit import function_source as source_module
from airflow_provider_raybatch.cluster.submit.function_source import package_of_source
from tests.support.approved import AssertSentences


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {
        "prompts.py": "raise SystemExit('importing me is an error')\ndef build(row): return row['a']\n",
        "team/__init__.py": "from team.deep.prompts import build\n",
        "team/data.txt": "data",
        "team/deep/__init__.py": "",
        "team/deep/prompts.py": "build = lambda row: 'x'\n",
        "team/__pycache__/x.pyc": "",
        "spaced/mod.py": "def build(row): ...\n",
        "broken.py": "def build(row) return 1\n",
        "mydag.py": "from airflow.sdk import dag\ndef build(row): ...\n",
        "conditional.py": "if True:\n    def build(row): ...\n",
        "starred.py": "from team import *\n",
        "fast.abi3.so": "",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_single_module_is_shipped_without_being_imported(folder):
    assert set(package_of_source("prompts:build").files) == {"prompts.py"}
    assert "prompts" not in sys.modules


@pytest.mark.parametrize("path", ["team.deep.prompts:build", "team:build"])
def test_a_package_travels_whole(folder, path):
    assert set(package_of_source(path).files) == {
        "team/__init__.py",
        "team/data.txt",
        "team/deep/__init__.py",
        "team/deep/prompts.py",
    }


def test_changed_source_is_another_package(folder):
    before = package_of_source("team.deep.prompts:build").uri
    (folder / "team/data.txt").write_text("other data")
    assert package_of_source("team.deep.prompts:build").uri != before


@pytest.mark.parametrize("path", ["conditional:build", "starred:build"])
def test_names_that_only_an_import_can_show_pass(folder, path):
    assert package_of_source(path).files


def test_unshippable_source_is_one_sentence(folder, assert_sentences: AssertSentences) -> None:
    assert_sentences(package_of_source, PackageError)


def test_too_much_source(folder, monkeypatch):
    monkeypatch.setattr(source_module, "SOURCE_LIMIT", 100)
    (folder / "team/data.txt").write_bytes(bytes(200))
    with pytest.raises(PackageError, match=r"largest file: team/data\.txt"):
        package_of_source("team:build")
