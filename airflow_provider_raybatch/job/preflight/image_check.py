# SPDX-License-Identifier: Apache-2.0
"""Refuses a job with images whose model takes none: by its ``config.json`` in seconds, or by vLLM's word."""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.echo_args import check_echo
from airflow_provider_raybatch.job.engine.images import ImagePrompts
from airflow_provider_raybatch.job.media.load import import_pillow
from airflow_provider_raybatch.job.planning.model_shape import shape_of
from airflow_provider_raybatch.job.preflight.model_files import ModelFiles
from airflow_provider_raybatch.job.row import Request

_OF_VISION = ("vision", "visual", "image", "mm_")
"""Some key of each config of a model with vision has one of these in it."""


def have_images(spec: BatchInferenceSpec, requests: Sequence[Request]) -> bool:
    """Whether a job's rows have images.

    :param requests: of the first rows.
    """
    return bool(spec.image_columns) or any(request.images for request in requests)


def check_decoder(spec: BatchInferenceSpec, requests: Sequence[Request]) -> None:
    """Refuse images where the driver's node can't decode them, as any node of the cluster may have to.

    :raises PreflightError: the rows have images, and there is no Pillow.
    """
    if have_images(spec, requests):
        import_pillow()


def refuse_text_model(spec: BatchInferenceSpec, requests: Sequence[Request], files: ModelFiles) -> None:
    """Refuse a model that is surely one of text alone; what its config leaves open is left to vLLM.

    :raises PreflightError: the rows have images.
    """
    if not have_images(spec, requests) or "hf_overrides" in spec.engine_args:
        return
    try:
        config = files.json("config.json")
    except Exception:  # of the hub, whose refusals the check of the model says in one sentence
        return
    if not isinstance(config, dict):
        return
    shape = shape_of(config)
    is_of_text = shape is not None and not shape.has_encoder
    if is_of_text and not any(name in json.dumps(list(config)) for name in _OF_VISION):
        kind = config.get("model_type")
        _refuse(spec, requests, f"it is a {kind} without vision; choose a model that has it")


def check_images(spec: BatchInferenceSpec, requests: Sequence[Request], images: ImagePrompts | None) -> None:
    """Ask vLLM whether the model takes images.

    :raises PreflightError: the rows have images, and it takes none.
    """
    if images is not None and have_images(spec, requests) and images.refusal:
        _refuse(spec, requests, images.refusal)


def check_echo_images(spec: BatchInferenceSpec, requests: Sequence[Request]) -> None:
    """Let an echo stand for a model without vision.

    :raises PreflightError: the rows have images, and its options say that it takes none.
    """
    if not check_echo(spec).takes_images:
        _refuse(spec, requests, "it takes no images; set takes_images in engine_args to True")


def _refuse(spec: BatchInferenceSpec, requests: Sequence[Request], why: str) -> None:
    if have_images(spec, requests):
        step = next((f"steps: {step.name}: " for step in spec.steps or () if step.images), "")
        raise PreflightError(f"{step}images: model {spec.model!r} can't be given any: {why}.")
