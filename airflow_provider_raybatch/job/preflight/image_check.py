# SPDX-License-Identifier: Apache-2.0
"""Refuses a job with images whose model takes none: by its ``config.json`` in seconds, or by vLLM's word."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.echo_args import check_echo
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.media.load import import_pillow
from airflow_provider_raybatch.job.media.values import may_hold_images
from airflow_provider_raybatch.job.planning.model_shape import shape_of
from airflow_provider_raybatch.job.preflight.check import Check
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel, LoadedModel
from airflow_provider_raybatch.job.preflight.model_files import ModelFiles
from airflow_provider_raybatch.job.row import Request

_OF_VISION = ("vision", "visual", "image", "mm_")
"""Some key of each config of a model with vision has one of these in it."""


def have_images(spec: BatchInferenceSpec, requests: Sequence[Request]) -> bool:
    """Whether a job's rows have images.

    :param requests: of the first rows.
    """
    return bool(spec.image_columns) or any(request.images for request in requests)


def check_image_columns(spec: BatchInferenceSpec, source: Source) -> None:
    """Refuse columns of a step that can't hold images, by their types.

    :raises PreflightError: a column is of numbers, for example.
    """
    for name in spec.images:
        kind = source.schema.field(name).type if name in source.schema.names else pa.null()
        if not may_hold_images(kind):
            text = (
                f"images: column {name!r} has the type {kind}, and images are bytes, structs with 'bytes' or "
                "'path', references as text, or lists of these; name the column that holds them."
            )
            raise PreflightError(spec.step_prefix + text)


def check_decoder(spec: BatchInferenceSpec, requests: Sequence[Request]) -> None:
    """Refuse images where the driver's node can't decode them, as any node of the cluster may have to.

    :raises PreflightError: the rows have images, and there is no Pillow.
    """
    if have_images(spec, requests):
        import_pillow()


def refuse_text_model(asked: AskedModel, files: ModelFiles) -> None:
    """Refuse a model that is surely one of text alone; what its config leaves open is left to vLLM.

    :raises PreflightError: the rows have images.
    """
    spec, requests = asked.spec, asked.requests
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


def check_images(model: LoadedModel) -> None:
    """Ask vLLM whether the model takes images.

    :raises PreflightError: the rows have images, and it takes none.
    """
    images = model.encoder.images
    if images is not None and have_images(model.spec, model.requests) and images.refusal:
        _refuse(model.spec, model.requests, images.refusal)


def check_echo_images(spec: BatchInferenceSpec, requests: Sequence[Request]) -> None:
    """Let an echo stand for a model without vision.

    :raises PreflightError: the rows have images, and its options say that it takes none.
    """
    if not check_echo(spec).takes_images:
        _refuse(spec, requests, "it takes no images; set takes_images in engine_args to True")


def _refuse(spec: BatchInferenceSpec, requests: Sequence[Request], why: str) -> None:
    if have_images(spec, requests):
        prefix = next((one.step_prefix for one in spec.questions() if one.images), "")
        raise PreflightError(f"{prefix}images: model {spec.model!r} can't be given any: {why}.")


TEXT_MODEL, IMAGES = Check(refuse_text_model), Check(check_images)
