# SPDX-License-Identifier: Apache-2.0
"""``/v1/models``: what the caller may name in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter

from airflow_provider_raybatch.batches.models import ServedModel, served_models
from airflow_provider_raybatch.plugins.batch_api.auth import Caller, may_run, may_use
from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError
from airflow_provider_raybatch.plugins.batch_api.objects import model_object
from airflow_provider_raybatch.plugins.batch_api.service import CallerDep, ServiceDep

router = APIRouter()


@router.get("/models")
async def list_models(caller: CallerDep, service: ServiceDep) -> dict[str, Any]:
    """All of them, in the order of the configuration."""
    found = await service.call(lambda _: list(usable_models(caller)))
    return {"object": "list", "data": [model_object(one.name, one.created) for one in found]}


@router.get("/models/{name:path}")
async def retrieve_model(name: str, caller: CallerDep, service: ServiceDep) -> dict[str, Any]:
    """One; a name may have slashes."""
    usable = await service.call(lambda _: list(usable_models(caller)))
    found = next((one for one in usable if one.name == name), None)
    if found is None:
        raise OpenAiError(
            404,
            "There is no such model, or you may not use it; GET /models lists those that you may use.",
            param="model",
            code="model_not_found",
        )
    return model_object(found.name, found.created)


def usable_models(caller: Caller) -> Iterator[ServedModel]:
    """The models whose batches a user may run, by the configuration and by Airflow. Called in threads."""
    models = served_models().values()
    return (one for one in models if may_use(caller, one) and may_run(caller.user, one.dag_id))
