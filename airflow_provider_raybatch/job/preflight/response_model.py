# SPDX-License-Identifier: Apache-2.0
"""The JSON schema of the Pydantic model that `response_format` names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.request.render import load_function

_FIELD = "response_format"


def with_model(spec: BatchInferenceSpec, load: Callable[[str], dict[str, Any]]) -> BatchInferenceSpec:
    """`spec` with the schema of its Pydantic model, if it names one.

    :param load: calls :func:`schema_of_model`.
    :raises PreflightError: the model can't be imported, or its properties can't be columns.
    """
    if spec.response_model is None:
        return spec
    schema = load(spec.response_model)
    try:
        return spec.with_response_schema(schema)
    except ValueError as error:
        raise PreflightError(f"{error} (the schema of {spec.response_model!r}).") from None


def schema_of_model(path: str) -> dict[str, Any]:
    """Import a Pydantic model, and make its JSON schema.

    :raises PreflightError: it can't be imported, is not a Pydantic model, or has no JSON schema.
    """
    model = load_function(path, _FIELD, "class")
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise PreflightError(
            f"{_FIELD}: {path!r} is not a Pydantic model; derive the class from pydantic.BaseModel "
            "(version 2)."
        )
    try:
        schema: dict[str, Any] = json.loads(json.dumps(model.model_json_schema()))
    except Exception as error:  # Pydantic's own, or what the user's methods raise
        raise PreflightError(
            f"{_FIELD}: {path!r} has no JSON schema ({short(error)}); give its fields types that JSON has."
        ) from error
    return schema
