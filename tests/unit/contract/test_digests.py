# SPDX-License-Identifier: Apache-2.0
"""Which changes of a spec lead to another dataset, and which to other responses; what a task is called."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.cost import CostArguments
from airflow_provider_raybatch.contract.arguments.images import ImageLimits
from airflow_provider_raybatch.contract.arguments.limits import Limits
from airflow_provider_raybatch.contract.arguments.report import ReportArguments
from airflow_provider_raybatch.contract.arguments.served import ServedArguments
from airflow_provider_raybatch.contract.digest import json_digest
from airflow_provider_raybatch.contract.submission import TaskKey
from tests.support.specs import TASK, spec, submitted


class TestFingerprint:
    def test_submission_limits_and_prices_are_not_part(self) -> None:
        one = submitted(0, deadline=1.0)
        money = {"gpu_hour_price": {"H100": 3.9}, "currency": "EUR", "max_cost": 5}
        other = submitted(1, token="other", max_error_fraction=0.5, **money)
        assert one.fingerprint == other.fingerprint == spec().fingerprint

    @pytest.mark.parametrize(
        "fields",
        [
            {"source": ["/data/other.jsonl"]},
            {"prompt": "Say: {row.text}"},
            {"model": "other"},
            {"sampling": {"temperature": 0}},
            {"engine": "echo", "replicas": 2},
            {"destination": "/data/out", "destination_format": "jsonl"},
            {"preserve_order": True},
            {"csv_options": {"delimiter": ";"}},
            {"images": ["photo"]},
        ],
    )
    def test_arguments_that_change_the_dataset_are_part(self, fields: dict[str, Any]) -> None:
        assert spec(**fields).fingerprint != spec().fingerprint

    def test_blank_rows_decide_the_dataset_and_no_response(self) -> None:
        changed = spec(on_blank="null")
        assert changed.fingerprint != spec().fingerprint
        assert changed.response_digest == spec().response_digest

    def test_later_argument_leaves_other_jobs_digests(self) -> None:
        """A job that was submitted before the update is still the same job."""
        groups = (Limits, ImageLimits, CostArguments, ReportArguments, ServedArguments)
        not_delivered = {name for group in groups for name in group.model_fields}
        fields = spec().model_dump(mode="json", exclude={"submission", "template_time", *not_delivered})
        later = {
            "csv_options": None,
            "special_tokens_in_text": "keep",
            "on_overlong": "error",
            "on_blank": "ask",
            "response_format_digest": None,
            "pooling": {},
            "embed_dtype": "float32",
            "chunk_tokens": None,
            "chunk_overlap_tokens": 0,
            "adapter": None,
            "adapters": {},
            "adapter_column": None,
            "adapter_digests": {},
            "tools": None,
            "tool_choice": None,
            "tool_call_parser": None,
            "query": None,
            "document": None,
            "documents_column": None,
            "top_n": None,
            "served_model_name": None,
            "images": [],
            "keep_images": False,
            "steps": None,
            "asked_step": None,
            "num_gpus": None,
        }
        assert later == {name: fields.pop(name) for name in later}
        assert spec().fingerprint == json_digest(fields)

    def test_kept_images_are_part_and_limits_of_images_are_not(self) -> None:
        images = spec(images=["photo"])
        limits = {"image_roots": ["/photos"], "image_hosts": ["a.com"], "max_image_bytes": 9}
        more = {"max_image_pixels": 9, "image_timeout": 1}
        assert spec(images=["photo"], **limits, **more).fingerprint == images.fingerprint
        assert spec(images=["photo"], keep_images=True).fingerprint != images.fingerprint

    def test_the_order_of_keys_does_not_matter(self) -> None:
        one, other = {"temperature": 0, "n": 2}, {"n": 2, "temperature": 0}
        assert spec(sampling=one).fingerprint == spec(sampling=other).fingerprint


class TestResponseDigest:
    def test_a_response_without_its_reasoning_is_another(self) -> None:
        args = {"engine": "vllm", "engine_args": {"reasoning_parser": "qwen3"}}
        assert spec(**args).deciding["reasoning"] == 2
        assert "reasoning" not in spec(engine="vllm").deciding

    @pytest.mark.parametrize(
        "fields",
        [
            {"source": ["/data/other.jsonl"]},
            {"destination": "/elsewhere", "destination_format": "jsonl"},
            {"engine": "echo", "replicas": 4, "batch_size": 7, "num_cpus": 2},
            {"num_gpus": 0.5},
            {"engine": "echo", "engine_args": {"max_num_seqs": 4, "startup_seconds": 3}},
            {"engine": "echo", "engine_args": {"hang_pattern": "x", "startup_spread": 3}},
            {"preserve_order": True},
            {"image_roots": ["/photos"], "image_timeout": 3},
        ],
    )
    def test_what_only_changes_how_it_runs_keeps_the_finished_rows(self, fields: dict[str, Any]) -> None:
        assert spec(**fields).response_digest == spec().response_digest

    @pytest.mark.parametrize(
        "fields",
        [
            {"prompt": "Say: {row.text}"},
            {"model": "other"},
            {"sampling": {"seed": 1}},
            {"sampling_column": "s"},
            {"images": ["photo"]},
            {"response_format": "json_object"},
            {"engine": "vllm", "engine_args": {}},
            {"engine": "echo", "engine_args": {"quantization": "fp8"}},
        ],
    )
    def test_what_changes_a_response_makes_all_rows_new(self, fields: dict[str, Any]) -> None:
        assert spec(**fields).response_digest != spec().response_digest


def test_digest_distinguishes_tasks() -> None:
    changes = {"namespace": "b", "dag_id": "b", "run_id": "b", "task_id": "b", "map_index": 0}
    tasks = [TASK, *({**TASK, field: value} for field, value in changes.items())]
    digests = {TaskKey.model_validate(task).digest for task in tasks}
    assert len(digests) == 6
    assert all(len(digest) == 32 for digest in digests)


def test_the_digest_is_the_same_on_every_machine_and_python() -> None:
    assert TaskKey(**TASK).digest == "0dbb522e82ca3fe4d498a03e427fc99b"


def test_for_people() -> None:
    assert str(TaskKey(**TASK)) == "nightly.label of run r1"
    assert str(TaskKey(**TASK, map_index=2)) == "nightly.label[2] of run r1"
