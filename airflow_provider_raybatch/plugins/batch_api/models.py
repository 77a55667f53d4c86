# SPDX-License-Identifier: Apache-2.0
"""``/v1/models``: what the caller may name in batches."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from airflow_provider_raybatch.batches.models import ServedModel, served_models
from airflow_provider_raybatch.plugins.batch_api.auth import Caller, may_use
from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError
from airflow_provider_raybatch.plugins.batch_api.objects import model_object
from airflow_provider_raybatch.plugins.batch_api.service import CallerDep, ServiceDep

router = APIRouter()


@router.get("/models")
async def list_models(caller: CallerDep, service: ServiceDep) -> dict[str, Any]:
    """All of them, in the order of the configuration."""
    found = await service.call(_usable, caller)
    return {"object": "list", "data": [model_object(one.name, one.created) for one in found.values()]}


@router.get("/models/{name:path}")
async def retrieve_model(name: str, caller: CallerDep, service: ServiceDep) -> dict[str, Any]:
    """One; a name may have slashes."""
    found = (await service.call(_usable, caller)).get(name)
    if found is None:
        raise OpenAiError(
            404,
            "There is no such model, or you may not use it; GET /models lists those that you may use.",
            param="model",
            code="model_not_found",
        )
    return model_object(found.name, found.created)


def _usable(store: object, caller: Caller) -> dict[str, ServedModel]:
    return {name: model for name, model in served_models().items() if may_use(caller, model)}
