# SPDX-License-Identifier: Apache-2.0
"""Which specs ask for the same engine, so that a warm one can serve them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.engine_process.proxy import identity
from tests.support.specs import spec


def of(files: str = "files", **fields: Any) -> str:
    return identity(spec(**{"engine": "vllm", "model": "/models/a", **fields}), files)


@pytest.mark.parametrize(
    ("changed", "is_another"),
    [
        ({"files": "other weights under the same name"}, True),
        ({"model": "/models/b"}, True),
        ({"engine_args": {"max_num_seqs": 7}}, True),
        ({"engine": "echo"}, True),
        ({"num_gpus": 0.5}, True),
        ({"num_gpus": 1}, False),
        ({"model_task": "embed"}, True),
        ({"prompt": "Judge {row.text}"}, False),
        ({"sampling": {"max_tokens": 5}}, False),
        ({"keep_warm": 60}, False),
    ],
)
def test_what_makes_another_engine(changed: dict[str, Any], is_another: bool) -> None:
    assert (of(**changed) != of()) is is_another
