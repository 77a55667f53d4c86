# SPDX-License-Identifier: Apache-2.0
"""A mistake is one sentence before an engine starts; a bad row is a dead letter, others are delivered.

Whole jobs, from the spec file to the driver's last event. The tests of each room have all that it refuses.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.fernet import Fernet

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets, seal
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.control import private_package
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.bad_inputs import GOOD, SUBMISSION, TASK, Place, assert_one_sentence
from tests.support.s3_server import S3Server
from tests.support.whole_job import without_cluster


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    without_cluster(monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Place(tmp_path / "job", modules=tmp_path)


def parquet(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def owned_by_another(place: Place) -> dict[str, Any]:
    other = Submission.model_validate({**SUBMISSION, "task": {**TASK, "task_id": "sibling"}})
    Journal(LocalFolder(str(place.out)), other, take_over=False).claim()
    return {"source": ["/not/there.csv"]}  # is looked at later


def case(
    fields: Callable[[Place], dict[str, Any]], *fragments: str, ends: FailureClass = FailureClass.USER_ERROR
) -> Any:
    return fields, fragments, ends


REFUSED = {
    "output column that the source has": case(
        lambda p: {"source": p.jsonl({"text": "a", "Response": "b"})},
        "has a column 'Response' already, which is also an output column, since many warehouses ignore case",
        "set output_prefix, for example to 'llm_'",
    ),
    "function that fails for every row": case(
        lambda p: {"prompt_function": p.function("def make(row):\n    return row['missing']\n")},
        "none of the first 20 rows makes a request; the first fails in step 'template': KeyError: 'missing'",
    ),
    "more bad rows than allowed": case(
        lambda p: {"source": p.jsonl(*GOOD, *[{"text": None}] * 2), "max_error_fraction": 0.05},
        "2 of the first 22 rows fail already, more than the 1 of 22 rows that max_error_fraction=0.05 allows",
        "column 'text' is null",
        "mend them or raise max_error_fraction",
        ends=FailureClass.TOO_MANY_ERRORS,
    ),
    "destination of another task": case(
        owned_by_another, "belongs to tägliche_berichte.sibling of run r1 日本", "choose a folder"
    ),
    "destination that can't be written": case(
        lambda p: {"destination": "/proc/raybatch"}, "/proc/raybatch: can't write it", "check the path"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_job_is_refused_before_an_engine_starts(name: str, place: Place) -> None:
    fields, fragments, ends = REFUSED[name]
    assert_one_sentence(place.refused(**fields(place)), *fragments, ends=ends)
    place.assert_nothing_happened()


@pytest.mark.parametrize(
    ("arrives", "ends", "sentence"),
    [
        (
            False,
            FailureClass.CLUSTER_LOST,
            "credentials: their package is no longer on the cluster; the retry sends it again.",
        ),
        (True, FailureClass.USER_ERROR, "credentials: they arrived sealed, but the cluster has no key; set "),
    ],
)
def test_credentials_that_can_not_be_read_end_the_job(
    place: Place, monkeypatch: pytest.MonkeyPatch, arrives: bool, ends: FailureClass, sentence: str
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        sealed = seal(Secrets(aws=AwsCredentials(region_name="x")), Fernet.generate_key().decode())
        archive.writestr("secrets", sealed)
    monkeypatch.setattr(private_package, "stored", lambda name: buffer.getvalue() if arrives else None)
    monkeypatch.setattr(private_package, "forget", lambda name: None)
    failed = place.refused(submission={**SUBMISSION, "secrets_package": "_ray_pkg_secrets.zip"})
    assert_one_sentence(failed, sentence, ends=ends)
    place.assert_nothing_happened()


@pytest.mark.parametrize("argument", ["source", "destination"])
@pytest.mark.parametrize(
    ("is_there", "fragments"),
    [
        (False, ("the bucket does not exist", "check its name")),
        (True, ("the credentials are refused", "check aws_conn_id")),
    ],
)
def test_a_bucket_that_can_not_be_used_is_refused(
    argument: str,
    is_there: bool,
    fragments: tuple[str, ...],
    place: Place,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = f"s3://{s3_server.new_bucket() if is_there else 'no-such-bucket'}/x"
    if is_there:  # moto then looks at keys
        monkeypatch.setattr("moto.core.responses.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    wrong = dataclasses.replace(s3_server, key_id="AKIAWRONG", secret="wrong")
    secrets = Secrets(aws=wrong.credentials)
    monkeypatch.setattr(private_package.PrivatePackage, "secrets", lambda package: secrets)
    failed = place.refused(**{argument: [uri] if argument == "source" else uri})
    assert_one_sentence(failed, f"{argument}: ", *fragments)
    assert "wrong" not in failed.message.replace("AKIAWRONG", "")
    place.assert_nothing_happened()


GOOD_ROWS: dict[str, tuple[Callable[[int], Any], str]] = {
    "jsonl": (lambda number: {"text": json.dumps({"n": number}), "params": None}, '{"n": %d}'),
    "csv": (lambda number: b'"good, %d",%d' % (number, number), "good, %d"),
}
"""A good row by its number, and its response."""
BAD_ROWS: dict[str, list[tuple[Any, str, str]]] = {
    "jsonl": [
        ({"text": None}, "template", "column 'text' is null"),
        ('{"text": "x', "read", "the line is not JSON ("),
        ({"text": "w " * 60}, "tokenize", "the prompt has 60 tokens and max_model_len is 50"),
        ({"text": "poison"}, "engine", "fails requests that contain 'poison'"),
        ({"text": "x", "params": {"max_tokens": -1}}, "engine", "sampling.max_tokens: "),
        ({"text": "plain"}, "parse", "the response is not JSON ("),
    ],
    "csv": [
        (b"only one", "read", "the row has 1 field, the header has 2"),
        (b"1,\xff\xfe", "read", "the row is not UTF-8 text"),
        (b'"forgotten,1\n"x",2', "read", "the row is not CSV ("),
        (b"1,a\rb", "read", "the row is not CSV ("),
    ],
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_rows_become_dead_letters_and_others_are_delivered(kind: str, place: Place) -> None:
    """There is a bad row after every good one."""
    bad, (good, response) = BAD_ROWS[kind], GOOD_ROWS[kind]
    rows = [row for number, (row, *_) in enumerate(bad) for row in (good(number), row)]
    fields: dict[str, Any] = (
        {"source": place.file("x.csv", b"\n".join([b"text,id", *rows]))}
        if kind == "csv"
        else {
            "source": place.jsonl(*rows),
            "sampling_column": "params",
            "response_format": "json_object",
            "engine_args": {"max_model_len": 50, "fail_pattern": "poison"},
        }
    )
    manifest = place.run(max_error_fraction=0.9, **fields)
    assert [row["response"] for row in place.rows(manifest)] == [response % n for n in range(len(bad))]
    counts = manifest.counts
    assert (counts.input, counts.ok, counts.error) == (2 * len(bad), len(bad), len(bad))
    assert sum(counts.errors_by_step.values()) == len(bad)
    letters = place.dead_letters(manifest)
    assert sorted(letters) == [2 * number + 1 for number in range(len(bad))]
    for number, (_, step, reason) in enumerate(bad):
        letter = letters[2 * number + 1]
        assert letter["step"] == step
        assert reason in letter["reason"]
        assert letter["request"] or step in {"template"}
        assert "row" in letter


def test_too_many_errors_end_the_job_and_publish_nothing(place: Place) -> None:
    """The last event counts the failed rows and says where their dead letters are."""
    rows = [{"text": f"fine {number}"} for number in range(100)] + [{"text": "poison"}] * 20
    failed = place.refused(
        source=place.jsonl(*rows), engine_args={"fail_pattern": "poison"}, max_error_fraction=0.05
    )
    assert failed.failure_class is FailureClass.TOO_MANY_ERRORS
    assert failed.message.startswith(
        "max_error_fraction: 20 rows failed so far, more than the 6 of 120 rows that max_error_fraction=0.05 "
        "allows; 100 of 120 rows are kept, and a clear of the task goes on from there; the dead letters of "
        f"20 failed rows are in {place.out}/dead_letter/"
    )
    assert ": 20 in step 'engine' (row 1" in failed.message
    letters = [line for path in place.out.glob("dead_letter/*/*") for line in path.open()]
    assert [json.loads(line)["row"]["text"] for line in letters] == ["poison"] * 20
    assert {path.name for path in place.out.iterdir()} == {"_raybatch", "dead_letter"}


def test_partitions_categories_and_views_are_delivered(place: Place) -> None:
    days = ("2026-01-31", "2026-02-01")
    for number, day in enumerate(days):
        text = pa.array([f"{number}-{row % 3}" for row in range(20)]).dictionary_encode()
        pair = pa.array([["a", str(row)] for row in range(20)], pa.list_(pa.string_view(), 2))
        place.file(f"in/day={day}/x.parquet", parquet(text=text, pair=pair))
    manifest = place.run(source=[f"{place.folder}/in"], prompt="{row.text} of {row.day}")
    rows = place.rows(manifest)
    assert {column.name: column.type for column in manifest.columns}["day"] == "date32[day]"
    assert [(row["text"], row["day"], row["pair"], row["response"]) for row in rows] == [
        (f"{n}-{row % 3}", datetime.date.fromisoformat(day), ["a", str(row)], f"{n}-{row % 3} of {day}")
        for n, day in enumerate(days)
        for row in range(20)
    ]


def test_an_empty_input_needs_no_model(place: Place) -> None:
    source = place.file("x.parquet", parquet(text=pa.array([], pa.string())))
    manifest = place.run(source=source, engine="vllm", model="/models/not-there")
    assert (manifest.counts.ok, manifest.counts.error) == (0, 0)
    assert list(manifest.timing.phases) == ["source", "prompt", "earlier", "claim"]
