# SPDX-License-Identifier: Apache-2.0
"""Source, destination and response store are locations apart from each other."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.arguments.data import OutputArguments
from airflow_provider_raybatch.contract.base import parse
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error


def test_destination_that_is_the_source_or_in_it_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(
        lambda source, destination: spec_error(source=["/o.csv", source], destination=destination)
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
def test_destination_beside_the_source_is_allowed(source: str, destination: str) -> None:
    assert spec(source=["/o.csv", source], destination=destination).destination == destination


def test_response_store_inside_another_folder_is_refused(assert_sentences: AssertSentences) -> None:
    def said(store: str) -> str:
        paths = ["/data/in.jsonl", "/lake/in", "/lake/deep/**/*.csv", "/lake/flat/*.csv"]
        return spec_error(source=paths, reuse=store)

    assert_sentences(said)


def test_response_store_beside_other_folders_is_allowed() -> None:
    for store in ("/data/store", "/data/output", "s3://data/out"):
        assert spec(reuse=store).reuse == store


@pytest.mark.parametrize(
    ("uri", "kept"),
    [("/out/", "/out"), ("/", "/"), ("s3://bucket/", "s3://bucket"), ("file:///out//", "file:///out")],
)
def test_trailing_slashes_of_the_destination_go(uri: str, kept: str) -> None:
    assert parse(OutputArguments, {"destination": uri}).destination == kept
