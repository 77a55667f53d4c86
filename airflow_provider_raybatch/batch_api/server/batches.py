# SPDX-License-Identifier: Apache-2.0
"""``/v1/batches`` and ``/v1/models``: a user's batches, and the models that they may name."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.requests import ClientDisconnect

from airflow_provider_raybatch.batch_api.server.access import Caller, usable_models
from airflow_provider_raybatch.batch_api.server.creating import BatchCreation, BatchCreator
from airflow_provider_raybatch.batch_api.server.new_batch import new_batch
from airflow_provider_raybatch.batch_api.server.objects import (
    OpenAiError,
    batch_object,
    listing,
    model_object,
    page_of,
    wrong_field,
)
from airflow_provider_raybatch.batch_api.server.runs import AirflowRuns
from airflow_provider_raybatch.batch_api.server.service import CallerDep, ServiceDep
from airflow_provider_raybatch.batch_api.server.upkeep import cancelled, settled
from airflow_provider_raybatch.batch_api.store.creates import CreateCall
from airflow_provider_raybatch.batch_api.store.records import BatchState
from airflow_provider_raybatch.batch_api.store.settings import served_models
from airflow_provider_raybatch.batch_api.store.store import BatchStore, usable
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.json_lines import RepeatedKeyError, object_of

_MOST = 256 * 1024
"""Bytes; the largest batch that the contract allows, with its metadata, has less than 64 KiB."""
_SECONDS = 60.0
"""In which the body comes in."""


async def json_object(request: Request, most: int = _MOST) -> dict[str, Any]:
    """The object; an empty body is an empty one, as for calls without parameters.

    :param most: bytes.
    :raises OpenAiError: it is too large or too slow, not JSON, not an object, or has a key twice.
    """
    content = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > most:
                    most_kib = f"{most // 1024} KiB"
                    raise OpenAiError(413, f"The body has more than {most_kib}, the most of this call.")
    except TimeoutError:
        raise OpenAiError(408, f"The body did not end in {_SECONDS:g} s; send it again.") from None
    except ClientDisconnect:
        raise OpenAiError(400, "The connection ended before the body did.") from None
    if not content.strip():
        return {}
    try:
        found = json.loads(content, parse_constant=_refused_number, object_pairs_hook=object_of)
    except RepeatedKeyError as error:
        raise wrong_field(error.key, "the body has it twice in one object; send it once") from None
    except (ValueError, RecursionError):
        raise OpenAiError(400, "The body is not JSON; send a JSON object in UTF-8.") from None
    if not isinstance(found, dict):
        raise OpenAiError(400, f"The body is a JSON {type(found).__name__}; send a JSON object.")
    return found


def _refused_number(name: str) -> Any:
    raise ValueError(name)


_PAGE, _LONGEST_PAGE = 20, 100
_COUNT = re.compile(r"[0-9]{1,9}")

router = APIRouter()


@router.post("/batches")
async def create_batch(
    request: Request,
    caller: CallerDep,
    service: ServiceDep,
    idempotency_key: Annotated[str | None, Header()] = None,
    x_stainless_retry_count: Annotated[str | None, Header()] = None,
) -> dict[str, Any]:
    """Create a batch, or find the one that this call repeats."""
    arrived = time.time()
    batch = new_batch(await json_object(request), strict=service.limits.strict)
    call = CreateCall(arrived, _count(x_stainless_retry_count), batch.digest)
    creation = BatchCreation(caller, batch, call, idempotency_key or None)
    runs = _runs(caller)

    def create(store: BatchStore) -> BatchState:
        return BatchCreator(served_models(), service.limits, runs).created(store, creation)

    return batch_object(await service.create(create))


@router.get("/batches")
async def list_batches(
    caller: CallerDep,
    service: ServiceDep,
    limit: Annotated[str | None, Query()] = None,
    after: Annotated[str | None, Query()] = None,
) -> dict[str, Any]:
    """A page of the caller's batches, newest first."""

    def page(store: BatchStore) -> dict[str, Any]:
        last = None if after is None else store.record(after)
        if last is not None and last.owner != caller.id:
            last = None  # refused in the same words as one that never was
        ids = [one.id for one in store.batches(caller.id, _LONGEST_PAGE + 1, last)]
        if last is not None:
            ids.insert(0, last.id)
        found = page_of(ids, default=_PAGE, most=_LONGEST_PAGE, limit=limit, after=after)

        def shown_batch(batch_id: str) -> dict[str, Any] | None:
            state = store.state(batch_id)
            if state is None or state.record.owner != caller.id:
                return None
            return batch_object(settled(store, state))

        return listing(usable(shown_batch, found.ids), found.has_more)

    return await service.call(page)


@router.get("/batches/{batch_id}")
async def retrieve_batch(batch_id: str, caller: CallerDep, service: ServiceDep) -> dict[str, Any]:
    """One of the caller's batches, after a look whether something about it is left to do."""
    runs = _runs(caller)

    def look(store: BatchStore) -> BatchState:
        return service.upkeep.looked_after(store, own_batch(store, caller, batch_id), runs)

    return batch_object(await service.call(look))


@router.post("/batches/{batch_id}/cancel")
async def cancel_batch(batch_id: str, caller: CallerDep, service: ServiceDep) -> dict[str, Any]:
    """Cancel one of the caller's batches."""
    runs = _runs(caller)

    def cancel(store: BatchStore) -> BatchState:
        return cancelled(store, own_batch(store, caller, batch_id), runs, service.upkeep)

    return batch_object(await service.call(cancel))


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


def own_batch(store: BatchStore, caller: Caller, batch_id: str) -> BatchState:
    """A batch of the caller's.

    :raises OpenAiError: 404, in the same words whether it is another user's or never was.
    """
    state = store.state(batch_id)
    if state is None or state.record.owner != caller.id:
        raise OpenAiError(404, f"No batch found with id {shown(batch_id)}.", param="batch_id")
    return state


def _runs(caller: Caller) -> AirflowRuns:
    return AirflowRuns(caller.token, asyncio.get_running_loop())


def _count(given: str | None) -> int:
    """How often a client says that it has repeated a call."""
    return int(given) if given is not None and _COUNT.fullmatch(given) else 0
