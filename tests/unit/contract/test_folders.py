# SPDX-License-Identifier: Apache-2.0
"""Source, destination and response store are locations apart from each other."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.arguments.output import OutputArguments
from airflow_provider_raybatch.contract.base import parse
from tests.support.specs import spec, spec_error


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("/data/x", "/data/x"),
        ("/data/x/", "/data/x"),
        ("file:///data/x", "/data/x"),
        ("/data/y/../x", "/data/x/"),
        ("s3://bucket/x/", "s3://bucket/x"),
    ],
)
def test_source_and_destination_differ_however_they_are_written(source: str, destination: str) -> None:
    sentence = spec_error(source=["/other.csv", source], destination=destination)
    assert "is also the source; choose another folder" in sentence


@pytest.mark.parametrize(
    ("source", "destination"),
    [("/data", "/data/out"), ("s3://bucket", "s3://bucket/out"), ("/data/**/*.csv", "/data/out")],
)
def test_destination_inside_the_source_is_refused(source: str, destination: str) -> None:
    sentence = spec_error(source=[source], destination=destination)
    assert sentence == (
        f"destination: {destination!r} lies inside the source {source!r}, so the next run would read its own "
        "output; choose a folder outside."
    )


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("/data/in", "/data/in2"),
        ("/data/in/x.csv", "/data/in/out"),
        ("/data/in/*.csv", "/data/in/out"),
        ("s3://bucket/a", "s3://other/a"),
        ("/data/out/day1", "/data/out"),
    ],
)
def test_neighbouring_folders_do_not_conflict(source: str, destination: str) -> None:
    assert spec(source=[source], destination=destination).destination == destination


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ("/data/out/", "reuse: '/data/out' is also the destination; choose another folder."),
        ("/data/in.jsonl", "reuse: '/data/in.jsonl' is also the source; choose another folder."),
        ("/data/out/store", "and the destination '/data/out' lie one inside the other"),
        ("file:///data", "and the destination '/data/out' lie one inside the other"),
        ("/lake/in/store", "and the source '/lake/in' lie one inside the other"),
        ("/lake/deep/store", "and the source '/lake/deep/**/*.csv' lie one inside the other"),
        ("/lake/flat", "and the source '/lake/flat/*.csv' lie one inside the other"),
    ],
)
def test_response_store_inside_another_folder_is_refused(store: str, sentence: str) -> None:
    paths = ["/data/in.jsonl", "/lake/in", "/lake/deep/**/*.csv", "/lake/flat/*.csv"]
    assert sentence in spec_error(source=paths, reuse=store)


def test_response_store_beside_other_folders_is_allowed() -> None:
    for store in ("/data/store", "/data/output", "s3://data/out"):
        assert spec(reuse=store).reuse == store


@pytest.mark.parametrize(
    ("uri", "kept"),
    [("/out/", "/out"), ("/", "/"), ("s3://bucket/", "s3://bucket"), ("file:///out//", "file:///out")],
)
def test_trailing_slashes_of_the_destination_go(uri: str, kept: str) -> None:
    assert parse(OutputArguments, {"destination": uri}).destination == kept
