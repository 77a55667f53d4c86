# SPDX-License-Identifier: Apache-2.0
"""Which adapters a job may have, and how rows choose among them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.adapters import revision_of
from tests.support.specs import spec, spec_error

ROWS = {"adapters": {"acme": "/adapters/acme"}, "adapter_column": "customer"}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"adapters": {"a": "/a"}},
            "adapters: no row chooses one of them; name the column with their names in adapter_column",
        ),
        ({"adapter_column": "c"}, "adapter_column: rows choose among the adapters that the job lists"),
        (
            {"adapter": "/a", **ROWS},
            "adapter: it is for all rows, and adapters for rows that choose",
        ),
        ({"adapter": "./mine"}, "adapter: './mine' is relative"),
        ({"adapter": "gs://b/a"}, "adapter: 'gs://' is not read for adapters; use s3://, a folder"),
        ({"adapter": "file:///a"}, "adapter: 'file:///a' is a URL"),
        ({"adapter": "s3:///a"}, "adapter: 's3:///a' names no bucket"),
        ({"adapters": {"": "/a"}, "adapter_column": "c"}, "adapters: an adapter has an empty name"),
        ({"adapters": {"a": "~/a"}, "adapter_column": "c"}, "adapters: a: '~/a' begins with '~'"),
        ({"adapter": "/a", "engine": "ray_data_llm"}, "adapter: engine 'ray_data_llm' takes no adapters"),
        (
            {"adapter": "/a", "engine_args": {"enable_lora": False}},
            "engine_args: enable_lora is off, and adapter needs it; leave it out",
        ),
    ],
)
def test_what_names_no_adapter_is_refused(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in spec_error(**fields)


def test_a_name_on_the_hub_may_have_a_revision() -> None:
    assert revision_of("acme/lora@v2") == ("acme/lora", "v2")
    assert revision_of("/data/a@b") == ("/data/a@b", None)
    assert revision_of("s3://b/a@b") == ("s3://b/a@b", None)
    pinned = spec(adapter=f"acme/lora@{'0' * 40}")
    assert set(pinned.adapter_locations) == {"acme/lora"}


def test_rows_with_an_adapter_may_share_a_prompt() -> None:
    assert spec(prompt="Write a poem.", **ROWS).adapter_column == "customer"
    assert "names no column" in spec_error(prompt="Write a poem.", adapter="/a")


def test_a_listed_adapter_more_changes_the_job_and_its_digest() -> None:
    more = spec(**{**ROWS, "adapters": {**ROWS["adapters"], "umbrella": "/u"}})  # type: ignore[dict-item]
    assert len({one.response_digest for one in (spec(), spec(**ROWS), more)}) == 3
    assert spec(**ROWS, adapter_digests={"acme": "1"}).fingerprint == spec(**ROWS).fingerprint


@pytest.mark.parametrize(("at_once", "swaps"), [(None, False), (1, True), (2, False)])
def test_an_engine_swaps_adapters_if_it_holds_fewer(at_once: int | None, swaps: bool) -> None:
    args = {} if at_once is None else {"max_loras": at_once}
    rows = {"adapters": {"a": "/a", "b": "/b"}, "adapter_column": "c"}
    assert spec(engine="vllm", engine_args=args, **rows).swaps_adapters is swaps
