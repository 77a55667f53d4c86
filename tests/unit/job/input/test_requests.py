# SPDX-License-Identifier: Apache-2.0
"""Requests that a whole job sends to S3 for each file of its source."""

from __future__ import annotations

from collections import Counter
from urllib.parse import unquote, urlsplit

import pytest

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.job.input import survey
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.job.preflight import input_check
from airflow_provider_raybatch.storage.folder import folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.faulty_s3 import FaultyS3, faulty
from tests.support.reading import WRITERS, packed
from tests.support.s3_server import S3Server
from tests.support.whole_job import attempt, without_cluster

FILES = 12


def requests_of(proxy: FaultyS3, bucket: str) -> Counter[tuple[str, str]]:
    """Count requests by method and file of the source; a listing names no file."""
    paths = [(call.method, unquote(urlsplit(call.target).path)) for call in proxy.calls]
    return Counter(path for path in paths if path[1].startswith(f"/{bucket}/in/") and path[1][-1] != "/")


def run(server: S3Server, name: str, id_column: str | None = "id") -> Counter[tuple[str, str]]:
    """Run a job on small files; return its requests by file."""
    bucket = server.new_bucket()
    source = S3Folder(bucket, "in", server.credentials)
    kind, _, packing = name.partition(".")
    for number in range(FILES):
        content = WRITERS[kind]([{"id": number, "text": f"row {number}"}])
        source.write(f"{number:03d}.{name}", packed(content, packing) if packing else content)
    with faulty(server) as proxy:
        out = folder(f"s3://{bucket}/out", proxy.api.credentials)
        summary = attempt(out, 0, source.uri, prompt="Say {row.text}", id_column=id_column)
        assert summary.rows == FILES
        return requests_of(proxy, bucket)


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet", "csv.gz", "jsonl.zst"])
def test_a_small_file_is_read_once_by_the_whole_job(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Survey, types, ids, sample, keys and replicas need its rows; no request only asks for its version."""
    without_cluster(monkeypatch)
    counted = run(s3_server, name)
    assert set(counted.values()) == {1}
    assert {method for method, _ in counted} == {"GET"}
    assert len(counted) == FILES


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_file_that_does_not_travel_costs_three_requests(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Survey, keys and replica read it; the first files, from which rows are sampled, travel."""
    without_cluster(monkeypatch)
    monkeypatch.setattr(survey, "_THREADS", 1)
    monkeypatch.setattr(survey, "CARRIED_BYTES", {"jsonl": 100, "csv": 50, "parquet": 3000}[name])
    monkeypatch.setattr(input_check, "_SAMPLE_ROWS", 1)
    counted = run(s3_server, name, id_column=None)
    assert {method for method, _ in counted} == {"GET"}
    assert set(counted.values()) == {1, 3}


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_large_file_is_surveyed_in_one_pass(s3_server: S3Server, kind: str) -> None:
    """What it is shows at its beginning, which is not read again for that."""
    bucket = s3_server.new_bucket()
    rows = [{"id": number, "text": "x" * 2000} for number in range(700)]
    S3Folder(bucket, "in", s3_server.credentials).write(f"x.{kind}", WRITERS[kind](rows))
    with faulty(s3_server) as proxy:
        listing = resolve(InputArguments(source=[f"s3://{bucket}/in"]), proxy.api.credentials)
        assert survey.survey(listing, proxy.api.credentials).rows == 700
        assert requests_of(proxy, bucket) == {("GET", f"/{bucket}/in/x.{kind}"): 1}
