# SPDX-License-Identifier: Apache-2.0
"""Source, destination and response store are locations apart from each other."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.output import OutputArguments
from airflow_provider_raybatch.contract.base import parse
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error

SAME = "destination: {1!r} is also the source; choose another folder."
INSIDE = (
    "destination: {1!r} lies inside the source {0!r}, so the next run would read its own output; choose a "
    "folder outside."
)


@pytest.mark.parametrize(
    ("source", "destination", "sentence"),
    [
        ("/data/x/", "/data/x", SAME),
        ("file:///data/x", "/data/x", SAME),
        ("/data/y/../x", "/data/x", SAME),
        ("s3://bucket/x/", "s3://bucket/x", SAME),
        ("/data", "/data/out", INSIDE),
        ("s3://bucket", "s3://bucket/out", INSIDE),
        ("/data/**/*.csv", "/data/out", INSIDE),
        ("/data/in", "/data/in2", None),
        ("/data/in/x.csv", "/data/in/out", None),
        ("/data/in/*.csv", "/data/in/out", None),
        ("s3://bucket/a", "s3://other/a", None),
        ("/data/out/day1", "/data/out", None),
    ],
)
def test_destination_is_neither_the_source_nor_in_it(
    source: str, destination: str, sentence: str | None
) -> None:
    fields: dict[str, Any] = {"source": ["/other.csv", source], "destination": destination}
    if sentence is None:
        assert spec(**fields).destination == destination
    else:
        assert spec_error(**fields) == sentence.format(source, destination)


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
