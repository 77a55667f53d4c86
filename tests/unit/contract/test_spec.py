# SPDX-License-Identifier: Apache-2.0
"""A spec is plain, frozen data, with digests derived from its fields; errors are one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import TaskKey
from tests.support.approved import AssertSentences
from tests.support.specs import TASK, spec, spec_error, submitted


def test_a_spec_survives_its_way_through_json() -> None:
    whole = submitted(
        sampling={
            "temperature": 0,
            "structured_outputs": {"json": {"anyOf": [{"type": "null"}, {"minimum": 1}]}},
        },
        messages=[{"role": "user", "content": "{row.a}"}],
        deadline=1.5,
    )
    assert parse(BatchInferenceSpec, whole.model_dump_json()) == whole


def test_specs_are_frozen() -> None:
    whole = spec()
    with pytest.raises(ValidationError):
        whole.preserve_order = True  # type: ignore[misc]  # that it is read-only is the point


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, False),
        ({"response_format": "json_object"}, True),
        ({"response_format": "text"}, False),
        ({"sampling": {"structured_outputs": {"json": {"type": "object"}}}}, True),
        ({"sampling": {"structured_outputs": {"json_object": True}}}, True),
        ({"sampling": {"structured_outputs": {"choice": ["a"]}}}, False),
    ],
)
def test_json_is_checked_where_it_was_asked_for(fields: dict[str, Any], needs: bool) -> None:
    assert spec(**fields).needs_json is needs


def test_what_has_no_effect_on_prompts_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


def test_gpus_of_a_replica() -> None:
    engine = {"engine": "vllm", "engine_args": {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}}
    assert spec(**engine).gpus_per_replica == 8
    engine["engine_args"]["prefill_context_parallel_size"] = 2
    assert spec(**engine).gpus_per_replica == 16
    assert spec().gpus_per_replica == 1


def test_an_error_is_one_sentence_with_field_value_and_remedy(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


def test_many_errors_and_broken_json_are_one_sentence() -> None:
    assert spec_error(sampling={"n": 0}, sorce=1).endswith(" (and 1 more).")
    assert len(spec_error(engine="x" * 5000)) < 300
    with pytest.raises(SpecError, match="BatchInferenceSpec: invalid JSON"):
        parse(BatchInferenceSpec, b"{")


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
            {"special_tokens_in_text": "escape"},
            {"on_overlong": "truncate"},
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


def takes(annotation: object, value: object) -> bool:
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


NUMBERS = [
    name
    for name, field in BatchInferenceSpec.model_fields.items()
    if takes(field.annotation, 1.0) and not takes(field.annotation, "text") and field.annotation is not bool
]


def test_numbers_are_found_by_their_types() -> None:
    assert {"limit", "replicas", "max_errors", "num_gpus", "max_cost", "flush_interval"} <= set(NUMBERS)
    assert {"reuse", "deduplicate", "sampling"}.isdisjoint(NUMBERS)


@pytest.mark.parametrize("name", NUMBERS)
def test_true_is_no_number(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**{name: True})
    assert str(caught.value).startswith(f"{name}: it must be a number, but it is True")


def test_true_stays_true_where_it_is_meant() -> None:
    made = spec(preserve_order=True, csv_options={"header": True}, engine_args={"enforce_eager": True})
    assert (made.preserve_order, made.engine_args) == (True, {"enforce_eager": True})
