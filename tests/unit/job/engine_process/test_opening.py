# SPDX-License-Identifier: Apache-2.0
"""Which specs ask for the same engine, so that a warm one can serve them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.engine_process.opening import identity
from tests.support.specs import spec


def of(files: str = "files", **fields: Any) -> str:
    return identity(spec(**{"engine": "vllm", "model": "/models/a", **fields}), files)


@pytest.mark.parametrize(
    "changed",
    [
        {"files": "other weights under the same name"},
        {"model": "/models/b"},
        {"engine_args": {"max_num_seqs": 7}},
        {"engine": "echo"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_an_engine_is_made_of_makes_another_one(changed: dict[str, Any]) -> None:
    assert of(**changed) != of()


@pytest.mark.parametrize(
    "changed",
    [{"prompt": "Judge {row.text}"}, {"sampling": {"max_tokens": 5}}, {"keep_warm": 60}],
    ids=lambda changed: next(iter(changed)),
)
def test_what_it_is_asked_makes_no_other(changed: dict[str, Any]) -> None:
    assert of(**changed) == of()
