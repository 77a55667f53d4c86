# SPDX-License-Identifier: Apache-2.0
"""A model without vision is refused for a job with images, before vLLM is imported where its files tell."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight.engine_check import check_engine
from airflow_provider_raybatch.job.preflight.image_check import check_echo_images, refuse_text_model
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.preflight.model_files import ModelFiles
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.run.launch import Launch
from tests.support.model_configs import QWEN3_30B_A3B
from tests.support.pictures import asking_about
from tests.support.specs import spec

TEXT = Request(prompt="x")
IMAGES = {"images": ["picture"]}


def ignored(event: Any) -> None:
    pass


def files(config: Any) -> ModelFiles:
    return ModelFiles({"config.json": None}, lambda _: json.dumps(config).encode())


def job(**fields: Any) -> Any:
    return spec(engine="vllm", model="acme/tiny", **fields)


@pytest.mark.parametrize(
    ("fields", "request_"),
    [(IMAGES, TEXT), ({}, asking_about("x"))],
    ids=["columns", "rows"],
)
def test_a_text_model_is_refused_by_its_config(fields: dict[str, Any], request_: Request) -> None:
    with pytest.raises(PreflightError) as raised:
        refuse_text_model(AskedModel(job(**fields), [request_], {}), files(QWEN3_30B_A3B))
    assert str(raised.value) == (
        "images: model 'acme/tiny' can't be given any: it is a qwen3_moe without vision; choose a model that "
        "has it."
    )


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        (IMAGES, {**QWEN3_30B_A3B, "vision_config": {}}),
        (IMAGES, {**QWEN3_30B_A3B, "mm_vision_tower": "clip"}),
        (IMAGES, {"model_type": "qwen3_vl_moe", "text_config": QWEN3_30B_A3B}),
        (IMAGES, {"model_type": "unknown"}),
        (IMAGES, {}),
        (IMAGES, []),
        ({**IMAGES, "engine_args": {"hf_overrides": {}}}, QWEN3_30B_A3B),
        ({}, QWEN3_30B_A3B),
    ],
    ids=["vision", "tower", "nested", "unknown", "empty", "no object", "overrides", "no row has images"],
)
def test_other_models_are_left_to_vllm(fields: dict[str, Any], config: Any) -> None:
    assert refuse_text_model(AskedModel(job(**fields), [TEXT], {}), files(config)) is None


@pytest.mark.parametrize("engine", ["echo", "vllm"])
def test_a_node_without_pillow_is_refused_at_once(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    asked = spec(engine=engine, model="acme/tiny")
    with pytest.raises(PreflightError, match=r"^images: Pillow can't be imported on this node .*'pillow'"):
        check_engine(asked, [asking_about("x")], {}, ignored, Launch())


def test_a_refusal_names_the_step_that_shows_images() -> None:
    read, judge = {"name": "read", "prompt": "{row.id}"}, {"name": "judge", "prompt": "{row.read_response}"}
    blind = {"engine": "echo", "engine_args": {"takes_images": False}, "model": "acme/tiny"}
    check_echo_images(spec(**blind, steps=[read, judge]), [TEXT])
    with pytest.raises(PreflightError, match=r"^steps: judge: images: model 'acme/tiny' can't be given any"):
        check_echo_images(spec(**blind, steps=[read, {**judge, "images": "scan"}]), [TEXT])


def test_a_job_without_images_needs_no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    asked = spec(engine="echo")
    assert check_engine(asked, [TEXT], {}, ignored, Launch()).digests.spec == asked.response_digest


def test_an_echo_stands_for_either_model() -> None:
    without = spec(engine="echo", engine_args={"takes_images": False})
    check_echo_images(without, [TEXT])
    check_echo_images(spec(engine="echo"), [asking_about("x")])
    with pytest.raises(PreflightError, match=r"^images: model .* takes no images; set takes_images"):
        check_echo_images(without, [asking_about("x")])
