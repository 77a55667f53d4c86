# SPDX-License-Identifier: Apache-2.0
"""Each mistake of a user is one sentence before an engine starts.

The driver runs here, with the echo engine on a Ray of this process, and its last event is what counts.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets, seal

from .place import (
    GOOD,
    SUBMISSION,
    TASK,
    Case,
    Place,
    assert_nothing_happened,
    assert_one_sentence,
    case,
    function,
    template,
)


def parquet_without_a_column(place: Place) -> dict[str, Any]:
    place.parquet("a.parquet", text=["x"], id=[1])
    place.parquet("b.parquet", txt=["x"], id=[1])
    return {"source": [str(place.folder)], "destination": str(place.folder) + "-out"}


def formats_mixed(place: Place) -> dict[str, Any]:
    first, second = place.jsonl(*GOOD), place.file("x.csv", "text\na\n")
    return {"source": [*first, *second]}


def sealed_package(key: bytes) -> dict[str, Any]:
    """Put sealed credentials where the job fetches them."""
    from ray.experimental.internal_kv import _internal_kv_put

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("secrets", seal(Secrets(aws=AwsCredentials(region_name="x")), key.decode()))
    _internal_kv_put(b"gcs://_ray_pkg_secrets.zip", buffer.getvalue())
    return with_package("_ray_pkg_secrets.zip")


def with_package(name: str) -> dict[str, Any]:
    return {"submission": {**SUBMISSION, "secrets_package": name}}


def owned_by_another(place: Place) -> dict[str, Any]:
    from airflow_provider_raybatch.contract.submission import Submission
    from airflow_provider_raybatch.job.output.journal import Journal
    from airflow_provider_raybatch.storage.folder import folder as open_folder

    other = Submission.model_validate({**SUBMISSION, "task": {**TASK, "task_id": "sibling"}})
    Journal(open_folder(str(place.out)), other, take_over=False).claim()
    return {}


PREFLIGHT = [
    # Source files
    case(
        "no such file",
        lambda p: {"source": [f"{p.folder}/no.csv"]},
        "nothing is at",
        "check the path",
    ),
    case(
        "glob without a match",
        lambda p: {"source": [f"{Path(p.jsonl(*GOOD)[0]).parent}/*.parquet"]},
        "no file matches",
        "1 other file is there",
    ),
    case(
        "folder without data",
        lambda p: {"source": [str(Path(p.file("in/readme.txt", "x")[0]).parent)]},
        "no Parquet, JSONL, CSV or Arrow file is in",
        "check the path or set format",
    ),
    case(
        "unknown extension",
        lambda p: {"source": p.file("x.data", "{}")},
        "x.data has no known extension",
        "set format to 'parquet', 'jsonl', 'csv' or 'arrow'",
    ),
    case("mixed formats", formats_mixed, "in.jsonl is jsonl and", "x.csv is csv", "name files of one format"),
    case(
        "a file named twice",
        lambda p: {"source": p.jsonl(*GOOD) * 2},
        "is named 2 times; its rows would come out as often",
    ),
    case(
        "damaged parquet",
        lambda p: {"source": p.file("x.parquet", b"PAR1 and then nothing")},
        "x.parquet is not a readable Parquet file",
    ),
    case(
        "gzip that is none",
        lambda p: {"source": p.file("x.jsonl.gz", b'{"text": "plain"}\n')},
        "x.jsonl.gz can't be unpacked as gzip",
    ),
    case(
        "gzip cut off",
        lambda p: {"source": p.file("x.csv.gz", gzip.compress(b"text\n" + bytes(range(97, 123)) * 99)[:60])},
        "x.csv.gz can't be unpacked as gzip",
    ),
    case(
        "csv column twice",
        lambda p: {"source": p.file("x.csv", "text,id,text\n1,2,3\n")},
        "has the column 'text' 2 times; rename all but one",
    ),
    case(
        "csv in utf-16",
        lambda p: {"source": p.file("x.csv", "text\nä\n".encode("utf-16"))},
        "x.csv is not CSV but UTF-16 text",
        "set csv_options={'encoding': 'utf-16'}",
    ),
    case(
        "csv that ends inside a quote",
        lambda p: {"source": p.file("x.csv", 'text,id\na,1\n"b,2\nc,3\n')},
        "x.csv ends inside a quoted field that begins in line 3; close the quote there",
    ),
    case(
        "parquet column missing in the second file",
        parquet_without_a_column,
        "b.parquet has no column 'text'; did you mean 'txt' (its columns: txt, id)",
    ),
    case(
        "one json document instead of lines",
        lambda p: {"source": p.file("x.json", json.dumps(GOOD, indent=1))},
        "x.json is JSON over many lines, not JSON Lines",
        "write one JSON object a line",
    ),
    # Columns and prompts
    case(
        "wrong column",
        template("{row.txt}"),
        "prompt: the source has no column 'txt'; did you mean 'text' (its columns: id, text)",
    ),
    case(
        "wrong column of the system prompt",
        template("x", system_prompt="{row.tone}"),
        "system_prompt: ",
        "'tone'",
    ),
    case(
        "wrong messages column",
        {"messages_column": "chat"},
        "messages_column: ",
    ),
    case(
        "wrong column of images",
        {"images": ["texts"]},
        "images: the source has no column 'texts'; did you mean 'text' (its columns: id, text)",
    ),
    case(
        "images that are numbers",
        {"images": ["id"]},
        "images: column 'id' has the type int64, and images are bytes, structs with 'bytes' or 'path'",
        "name the column that holds them",
    ),
    case(
        "images that are text",
        {"images": ["text"]},
        "images: none of the first ",
        "the first fails in step 'media': column 'text' has the text ",
        "give bytes, or a reference such as s3://bucket/key",
    ),
    case(
        "images outside of their roots",
        lambda p: {"source": p.jsonl({"text": "a", "photo": "/etc/hostname"}), "images": ["photo"]},
        "the first fails in step 'media': /etc/hostname is not below image_roots",
    ),
    case("wrong sampling column", {"sampling_column": "params"}, "sampling_column: ", "no column 'params'"),
    case(
        "output column that the source has",
        lambda p: {"source": p.jsonl({"text": "a", "response": "b"})},
        "already, which is also an output column",
        "set output_prefix, for example to 'llm_'",
    ),
    case(
        "output column that the source has in other case",
        lambda p: {"source": p.jsonl({"text": "a", "Response": "b"})},
        "has a column 'Response' already, which is also an output column, since many warehouses ignore case",
        "set output_prefix, for example to 'llm_'",
    ),
    case(
        "function that cannot be imported",
        lambda p: function(p, "import no_such_package\n"),
        "can't be imported on the cluster (ModuleNotFoundError",
        "add what it needs to runtime_env",
    ),
    case(
        "function that is not there",
        lambda p: function(p, "def other(row): pass\n"),
        "has no function 'make'",
        "check the import path",
    ),
    case(
        "function that fails for every row",
        lambda p: function(p, "def make(row):\n    return row['missing']\n"),
        "none of the first 20 rows makes a request",
        "KeyError: 'missing'",
    ),
    case(
        "every row null",
        lambda p: {"source": p.jsonl(*[{"text": None}] * 3)},
        "none of the first 3 rows makes a request; the first fails in step 'template': column 'text' is null",
    ),
    case(
        "more bad rows than allowed",
        lambda p: {
            "source": p.jsonl(*GOOD, {"text": None}, {"text": None}),
            "max_error_fraction": 0.05,
        },
        "2 of the first 22 rows fail already, more than the 1 of 22 rows that max_error_fraction=0.05 allows",
        "mend them or raise max_error_fraction",
        ends=FailureClass.TOO_MANY_ERRORS,
    ),
    # Engine and cluster
    case(
        "unknown engine argument",
        {"engine": "echo", "engine_args": {"max_nums_seq": 1}},
        "engine_args.max_nums_seq: ",
        "correct its spelling",
    ),
    case("bad sampling value", {"sampling": {"max_tokens": 0}}, "sampling.max_tokens: ", "but it is 0"),
    case(
        "more replicas than fit",
        {"engine": "echo", "replicas": 50},
        "the job asks for 50 replicas of 1 CPU on one node each, and the cluster has room for 2",
        "ask for fewer replicas or smaller ones, or add nodes, or set cluster_wait",
        ends=FailureClass.UNSCHEDULABLE,
    ),
    case(
        "replica larger than a node",
        {"engine": "echo", "num_cpus": 64},
        "1 replica of 64 CPU",
        "largest node: 2 CPU",
        ends=FailureClass.UNSCHEDULABLE,
    ),
    case(
        "accelerator that is not there",
        {"engine": "echo", "accelerator_type": "H200"},
        "an H200",
        "room for 0",
        ends=FailureClass.UNSCHEDULABLE,
    ),
    case(
        "nodes that do not come",
        {"engine": "echo", "replicas": 50, "cluster_wait": 0.1},
        "0.1 s are over and replicas: the job asks for 50",
        "raise cluster_wait, ask for fewer replicas",
        ends=FailureClass.STALLED,
    ),
    # Destination
    case(
        "destination of another task",
        owned_by_another,
        "belongs to tägliche_berichte.sibling of run r1 日本",
        "choose a folder",
    ),
    case(
        "destination where nobody may write",
        {"destination": "/proc/raybatch"},
        "/proc/raybatch: can't write it",
        "check the path",
    ),
    case(
        "destination that is a file",
        lambda p: {"destination": p.file("taken", "x")[0]},
        "can't write it (Not a directory)",
        "check the path",
    ),
    # Credentials
    case(
        "credentials that are gone",
        with_package("_ray_pkg_gone.zip"),
        "their package is no longer on the cluster",
        "the retry sends it again",
        ends=FailureClass.CLUSTER_LOST,
    ),
    case(
        "sealed credentials without a key",
        lambda p: sealed_package(Fernet.generate_key()),
        "they arrived sealed, but the cluster has no key",
        "set RAYBATCH_SEAL_KEY on its nodes",
    ),
]


@pytest.mark.parametrize("wrong", PREFLIGHT)
def test_a_wrong_job_is_refused_before_an_engine_starts(wrong: Case, place: Place, ray_here: Any) -> None:
    assert_one_sentence(place.refused(**wrong.fields(place)), wrong)
    assert_nothing_happened(place)


S3 = [
    case(
        "unknown source bucket",
        {"source": ["s3://no-such-bucket/in/"]},
        "the bucket does not exist",
    ),
    case("unknown destination bucket", {"destination": "s3://no-such-bucket/out"}, "check its name"),
    case(
        "nothing at the key",
        lambda p: {"source": [f"s3://{p.s3.new_bucket()}/in/"]},
        "nothing is at s3://",
        "check the path",
    ),
]


@pytest.mark.parametrize("wrong", S3)
def test_a_wrong_place_in_s3_is_refused(
    wrong: Case, place: Place, ray_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.s3.open_to_this_process(monkeypatch)
    assert_one_sentence(place.refused(**wrong.fields(place)), wrong)
    assert_nothing_happened(place)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_wrong_keys_of_s3_are_refused(
    side: str, place: Place, ray_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.core import responses

    uri = f"s3://{place.s3.new_bucket()}/x"
    monkeypatch.setattr(responses.settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    secrets = Secrets(
        aws=AwsCredentials(
            aws_access_key_id=SecretStr("AKIAWRONG"),
            aws_secret_access_key=SecretStr("wrong"),
            endpoint_url=place.s3.url,
        )
    )
    monkeypatch.setattr(
        "airflow_provider_raybatch.job.control.private_package.PrivatePackage.secrets",
        lambda package: secrets,
    )
    fields = {"source": {"source": [uri]}, "destination": {"destination": uri}}[side]
    failed = place.refused(**fields)
    expected = Case("", lambda p: {}, (side, "the credentials are refused", "check aws_conn_id"))
    assert_one_sentence(failed, expected)
    assert "wrong" not in failed.message.replace("AKIAWRONG", "")
    assert_nothing_happened(place)
