# SPDX-License-Identifier: Apache-2.0
"""Columns that a user's function computes from rows and responses, through a whole job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.tasks import postprocess
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.echo_place import EchoPlace
from tests.support.specs import spec
from tests.support.whole_job import without_cluster

ROWS = [{"id": number, "text": f"company {number}"} for number in range(12)]


class Place(EchoPlace):
    """With a user's module."""

    def write(self, source: str) -> None:
        """Write the user's module; it is not imported yet."""
        (self.root / "users_labels.py").write_text(source)
        sys.modules.pop("users_labels", None)

    def label(self, number: int = 0, rows: list[dict[str, Any]] = ROWS, **fields: Any) -> BatchManifest:
        """Run a submission of five rows a file, with the current module."""
        sys.modules.pop("users_labels", None)
        digest = str(hash((self.root / "users_labels.py").read_text()))
        function = {"postprocess": "users_labels:label", "postprocess_digest": digest}
        return self.job(number, rows, **{"batch_size": 4, **function, **fields})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        without_cluster(patch)
        patch.setattr(sys, "dont_write_bytecode", True)
        yield Place(tmp_path)
    sys.modules.pop("users_labels", None)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_columns_are_added_in_types_that_fit_all_files(place: Place, kind: str) -> None:
    place.write("""
import numpy as np

def label(row, response):
    n = row["id"]
    made = {"upper": response.upper(), "half": n // 2 if n < 10 else n / 2, "size": np.int64(len(response))}
    row.clear()  # changes nothing that is published
    if n == 11:
        made |= {"late": [{"a": 1}], "never": None}
    return made
""")
    manifest = place.label(destination_format=kind, output_prefix="llm_")
    added = [(column.name, column.type) for column in manifest.columns][-5:]
    assert [name for name, _ in added] == ["upper", "half", "size", "late", "never"]
    assert [of for _, of in added][:3] == ["string", "double", "int64"]
    assert added[-1] == ("never", "string")
    rows = place.rows(manifest)
    assert [(row["id"], row["text"], row["llm_response"]) for row in rows] == [
        (row["id"], row["text"], row["text"]) for row in ROWS
    ]
    assert [row["upper"] for row in rows] == [row["text"].upper() for row in ROWS]
    assert [row["half"] for row in rows] == [*(n // 2 for n in range(10)), 5.0, 5.5]
    assert [row["late"] for row in rows] == [*[None] * 11, [{"a": 1}]]
    assert manifest.counts.errors_by_step == {}
    assert [entry.path for entry in place.folder.list("_raybatch/postprocess")] == []


def test_rows_failed_by_the_function_keep_their_response(place: Place) -> None:
    place.write("""
import datetime, sys

def label(row, response):
    n = row["id"]
    if n == 0: raise KeyError("missing")
    if n == 1: return [1]
    if n == 2: return {"TEXT": 1}
    if n == 3: return {"Response": 1}
    if n == 4: return {"at": datetime.date(2026, 1, 1)}
    if n == 5: return {" x": 1}
    if n == 6: return {"mixed": [1, "a"]}
    if n == 7: return {"huge": 2 ** 64}
    if n == 8: sys.exit(3)
    if n == 9: return {5: 1}
    if n == 10: raise KeyboardInterrupt("enough")
    return {"good": True}
""")
    manifest = place.label(max_errors=11)
    letters = place.letters(manifest)
    assert [letter["ordinal"] for letter in letters] == list(range(11))
    assert {letter["step"] for letter in letters} == {"postprocess"}
    assert [letter["response"] for letter in letters] == [row["text"] for row in ROWS[:11]]
    assert [letter["row"] for letter in letters] == ROWS[:11]
    assert [letter["reason"] for letter in letters] == [
        "KeyError: 'missing'",
        "the function returned [1]; return a dictionary of columns",
        "the function returned a column 'TEXT', which the dataset has already; rename it",
        "the function returned a column 'Response', which the dataset has already; rename it",
        "the function returned a column 'at' that can't be used: datetime.date(2026, 1, 1) is a date; return "
        "text, a number, true or false, a list, or a dictionary whose keys are texts",
        "the function returned a column ' x' that can't be used: ' x' begins or ends with white space; write "
        "'x'",
        "the function returned a column 'mixed' that can't be used: no column holds [1, 'a']; return whole "
        "numbers of at most 64 bits, and lists and dictionaries of one type each",
        "the function returned a column 'huge' that can't be used: no column holds 18446744073709551616; "
        "return whole numbers of at most 64 bits, and lists and dictionaries of one type each",
        "SystemExit: 3",
        "the function returned a column named 5; name it by a text",
        "KeyboardInterrupt: enough",
    ]
    assert (manifest.counts.ok, manifest.counts.errors_by_step) == (1, {"postprocess": 11})
    assert [(row["id"], row["good"]) for row in place.rows(manifest)] == [(11, True)]


def test_a_changed_function_pays_for_nothing(place: Place) -> None:
    """After a failure, as a retry, and in another DAG run with a response store."""
    store = str(place.root / "store")
    place.write("def label(row, response): return {'label': response.split()[5]}\n")
    with pytest.raises(RaybatchError) as failed:
        place.label(0, reuse=store)
    assert failed.value.failure_class is FailureClass.TOO_MANY_ERRORS
    text = str(failed.value)
    assert text.startswith(
        "max_error_fraction: 12 rows failed once postprocess was called, more than the 0 of 12 rows that "
        "may fail where max_error_fraction is not set; the dead letters are in "
    )
    assert text.endswith(
        ": 12 in step 'postprocess' (row 0: IndexError: list index out of range); 12 of 12 rows are kept, "
        "and a clear of the task goes on from there."
    )
    assert place.folder.head("manifest.json") is None
    assert place.generated() == 12

    place.write("def label(row, response): return {'label': response.split()[1]}\n")
    first = place.label(1, reuse=store)
    assert [row["label"] for row in place.rows(first)] == [str(n) for n in range(12)]
    assert (place.generated(), first.counts.resumed) == (12, 12)

    place.write("def label(row, response): return {'label': int(response.split()[1])}\n")
    second = place.label(2, reuse=store)
    assert [row["label"] for row in place.rows(second)] == list(range(12))
    assert place.generated() == 12

    elsewhere = LocalFolder(str(place.root / "elsewhere"))
    place.folder = elsewhere
    place.write("def label(row, response): return {'other': response}\n")
    third = place.label(3, reuse=store)
    assert (third.counts.reused, place.generated()) == (12, 12)
    assert [row["other"] for row in place.rows(third)] == [row["text"] for row in ROWS]


def test_without_the_function_its_columns_are_gone(place: Place) -> None:
    place.write("def label(row, response): return {'label': 1}\n")
    place.label(0)
    manifest = place.label(1, postprocess=None)
    assert "label" not in [column.name for column in manifest.columns]
    assert place.generated() == 12


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "{'score': 'n/a' if row['id'] == 3 else row['id']}",
            "column 'score' has 0 in row 0 and 'n/a' in row 3, which no type fits both; return one type, or "
            "None where there is no value.",
        ),
        (
            "{'score': 'n/a' if row['id'] > 9 else None if row['id'] < 7 else 1.5}",
            "column 'score' has 1.5 in row 7 and 'n/a' in row 10, which no type fits both; return one type, "
            "or None where there is no value.",
        ),
        (
            "{'score': 1} if row['id'] < 11 else {'Score': 1}",
            "it returned columns 'score' (row 0) and 'Score' (row 11), which many warehouses take for one; "
            "write both alike.",
        ),
    ],
    ids=["in one file", "in two files", "case"],
)
def test_values_of_several_types_end_the_job_with_one_sentence(
    place: Place, source: str, sentence: str
) -> None:
    place.write(f"def label(row, response): return {source}\n")
    with pytest.raises(RaybatchError) as refused:
        place.label()
    kept = "12 of 12 rows are kept, and a clear of the task goes on from there."
    assert str(refused.value) == f"postprocess: {sentence.rstrip('.')}; {kept}"
    assert refused.value.failure_class is FailureClass.USER_ERROR
    assert place.folder.head("manifest.json") is None
    place.write("def label(row, response): return {'score': row['id']}\n")
    assert len(place.rows(place.label(1))) == 12
    assert place.generated() == 12
    # The notes of the failed attempt are gone, too.
    assert place.folder.list("_raybatch/postprocess") == []


def test_damaged_notes_are_made_again_by_a_retry(place: Place) -> None:
    place.write("def label(row, response): return {'score': row['id']}\n")
    write = LocalFolder.write

    def rotting(self: LocalFolder, path: str, content: bytes) -> None:
        if path.startswith("_raybatch/postprocess/"):
            content = content[:50] + bytes([content[50] ^ 1]) + content[51:]
        write(self, path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFolder, "write", rotting)
        with pytest.raises(
            StorageError, match=r"_raybatch/postprocess/.*/00000.parquet was damaged"
        ) as caught:
            place.label()
    assert caught.value.failure_class is FailureClass.STORAGE
    assert [row["score"] for row in place.rows(place.label(1))] == list(range(12))
    assert place.generated() == 12


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "import no_such_module\n",
            "postprocess: 'users_labels:label' can't be imported on the cluster (ModuleNotFoundError: No "
            "module named 'no_such_module'); add what it needs to runtime_env, and keep it out of the "
            "DAG file.",
        ),
        ("", "postprocess: module 'users_labels' has no function 'label'; check the import path."),
        (
            "def label(row): return {}\n",
            "postprocess: 'users_labels:label' can't be called with a row and a response (too many "
            "positional arguments); write it as def label(row, response).",
        ),
    ],
)
def test_uncallable_function_is_refused_in_preflight(place: Place, source: str, sentence: str) -> None:
    place.write(source)
    with pytest.raises(PreflightError) as refused:
        place.label()
    assert str(refused.value) == sentence
    assert place.generated() == 0


def test_function_changes_the_fingerprint_and_no_request() -> None:
    plain, one, other = (
        spec(**given)
        for given in ({}, {"postprocess": "m:f"}, {"postprocess": "m:f", "postprocess_digest": "1"})
    )
    assert len({plain.fingerprint, one.fingerprint, other.fingerprint}) == 3
    assert plain.response_digest == one.response_digest == other.response_digest


def test_more_columns_than_a_dataset_may_have_are_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postprocess, "MOST_COLUMNS", 5)
    place.write("def label(row, response): return {response: 1}\n")
    with pytest.raises(RaybatchError, match=r"^postprocess: it returned 12 different columns, and .* have 5"):
        place.label()


def test_rows_that_are_empty_or_all_failed_still_make_a_dataset(place: Place) -> None:
    place.write("def label(row, response): raise ValueError('no')\n")
    manifest = place.label(max_error_fraction=1.0)
    assert (manifest.counts.ok, manifest.counts.error) == (0, 12)
    assert place.rows(manifest) == []
