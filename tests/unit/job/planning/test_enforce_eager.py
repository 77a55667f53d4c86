# SPDX-License-Identifier: Apache-2.0
"""When an engine starts without compiling its model."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning.enforce_eager import Workload, workload_of
from airflow_provider_raybatch.job.planning.plan import Cluster, make
from airflow_provider_raybatch.job.row import Request
from tests.support.clusters import DGX, H200, LAPTOP
from tests.support.specs import spec

SHORT = Workload(longest_response=8, characters=300)


def is_eager(
    rows: int, workload: Workload | None = SHORT, cluster: Cluster | None = None, **fields: Any
) -> bool:
    return make(spec(**{"engine": "vllm", **fields}), rows, cluster or Cluster((H200,)), workload).eager


@pytest.mark.parametrize(
    ("rows", "workload", "expected"),
    [
        pytest.param(328, SHORT, True, id="a night that changed little"),
        pytest.param(10, Workload(256, 300), True, id="a first try"),
        pytest.param(10, Workload(257, 300), False, id="long responses"),
        pytest.param(1024, Workload(256, 300), True, id="as many as run at once"),
        pytest.param(1025, Workload(256, 300), False, id="one more"),
        pytest.param(600, Workload(256, 300, completions=2), False, id="two completions a row"),
        pytest.param(3_334, SHORT, False, id="many prompts"),
        pytest.param(100, Workload(8, 100_000), False, id="long prompts"),
        pytest.param(10, Workload(None, 300), False, id="responses without a limit"),
        pytest.param(10, None, False, id="rows that were not looked at"),
    ],
)
def test_few_steps_are_not_compiled_for(rows: int, workload: Workload | None, expected: bool) -> None:
    assert is_eager(rows, workload) is expected


@pytest.mark.parametrize(
    "fields",
    [
        {"engine": "echo", "engine_args": {"tensor_parallel_size": 1}},
        {"engine": "ray_data_llm"},
        {"keep_warm": 60},
        {"engine_args": {"enforce_eager": False}},
        {"engine_args": {"performance_mode": "throughput"}},
    ],
)
def test_other_engines_and_wishes_stay_as_they_are(fields: dict[str, Any]) -> None:
    assert not is_eager(10, **fields)


def test_each_replica_has_its_part_of_the_rows() -> None:
    of_eight = Workload(128, 300)
    assert is_eager(16 * 1024, of_eight, Cluster((DGX,)))
    assert not is_eager(16 * 1024, of_eight, Cluster((H200,)))
    assert not is_eager(16 * 1024, of_eight, Cluster((DGX,)), replicas=(1, 8))


def test_cpus_have_a_rule_of_their_own() -> None:
    """There vLLM never compiles, see `cpu_defaults`; the plan says nothing of it."""
    made = make(spec(engine="vllm"), 10, LAPTOP, SHORT)
    assert "enforce_eager" not in made.shown()


def test_the_plan_says_why() -> None:
    made = make(spec(engine="vllm"), 328, Cluster((H200,)), SHORT)
    reason = "at most 8 steps, too few to be worth compiling"
    assert made.shown()["enforce_eager"] == {"value": True, "reason": reason}
    assert made.sentence(328).endswith(f"; the model is not compiled ({reason})")


class TestWorkload:
    def test_limits_of_rows_and_of_the_job(self) -> None:
        asked = spec(engine="vllm", sampling={"max_tokens": 16, "n": 2})
        rows = [Request(prompt="four"), Request(prompt="eight ch", sampling={"max_tokens": 32})]
        assert workload_of(asked, rows) == Workload(32, 6.0, 2)
        assert workload_of(asked, rows[:1]) == Workload(16, 4.0, 2)

    def test_one_row_without_a_limit(self) -> None:
        rows = [Request(prompt="four", sampling={"max_tokens": 32}), Request(prompt="four")]
        assert workload_of(spec(engine="vllm"), rows).longest_response is None

    def test_a_row_with_bad_sampling_fails_alone_and_later(self) -> None:
        rows = [Request(prompt="four", sampling={"max_tokens": "many", "n": "2"}), Request(prompt="four")]
        assert workload_of(spec(engine="vllm", sampling={"max_tokens": 9}), rows) == Workload(None, 4.0, 1)

    def test_messages_are_counted(self) -> None:
        parts: list[dict[str, Any]] = [{"type": "text", "text": "four"}]
        row = Request(messages=[{"role": "user", "content": parts}, {"role": "user", "content": "four"}])
        assert workload_of(spec(engine="vllm"), [row]).characters == 8
