# SPDX-License-Identifier: Apache-2.0
"""Which adapters a job may have, and how rows choose among them."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.arguments.engine import revision_of
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error

ROWS = {"adapters": {"acme": "/adapters/acme"}, "adapter_column": "customer"}


def test_what_names_no_adapter_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


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
