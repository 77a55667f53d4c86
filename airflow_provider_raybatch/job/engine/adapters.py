# SPDX-License-Identifier: Apache-2.0
"""The adapters (LoRA) of one engine of vLLM, over all jobs that it serves.

Three properties of vLLM decide how: an adapter that can't be loaded ends the engine if a request is the first
to need it; the engine knows an adapter by its number alone, so another folder under a known number is
ignored; and cached prefixes are kept apart by the adapter's name alone. So each content has a name and a
number of its own for as long as the engine lives, and is loaded before the first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_lora
from airflow_provider_raybatch.job.engine.adapter_files import local_folder
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.failures.diagnosis import short


class EngineAdapters:
    """Loads the adapters of each job.

    :param spans_nodes: whether processes on other nodes load them, too.
    """

    def __init__(self, spans_nodes: bool = False) -> None:
        self._spans_nodes = spans_nodes
        self._numbers: dict[str, int] = {}
        self._loaded: set[int] = set()

    async def load(self, llm: Any, spec: BatchInferenceSpec) -> dict[str, Any]:
        """Load those of a job, and forget those of the job before.

        :param llm: vLLM's async engine.
        :returns: vLLM's ``LoRARequest`` of each, by its name in the job.
        :raises PreflightError: one can't be read or loaded.
        :raises EngineDeadError: the engine has ended.
        """
        requests = {
            name: await self._request(name, location, spec.adapter_digests)
            for name, location in spec.adapter_locations.items()
        }
        needed = {request.lora_int_id for request in requests.values()}
        for number in (
            self._loaded - needed
        ):  # first, so that no slot is left for the new ones to overflow into
            await llm.remove_lora(number)
        self._loaded &= needed
        for name, request in requests.items():
            await self._add(llm, name, request)
        return requests

    async def _request(self, name: str, location: str, digests: Mapping[str, str]) -> Any:
        content = digests.get(name) or location
        try:
            folder = await asyncio.to_thread(local_folder, location, content)
        except RaybatchError:
            raise
        except Exception as error:  # of the hub's client
            raise PreflightError(
                f"adapters: {name!r} can't be read from {location!r} ({short(error)})."
            ) from error
        if self._spans_nodes and folder != location:
            raise PreflightError(
                f"adapters: {location!r} is copied to one node, and a replica of this job has several; give "
                "a folder that all nodes see."
            )
        return vllm_compat_lora.lora_request(
            content, self._numbers.setdefault(content, len(self._numbers) + 1), folder
        )

    async def _add(self, llm: Any, name: str, request: Any) -> None:
        try:
            await llm.add_lora(request)
        except Exception as error:
            if llm.errored or isinstance(error, vllm_compat.engine_dead_error()):
                raise EngineDeadError(
                    f"vLLM's engine process died while it loaded the adapter {name!r} ({error}).",
                    vllm_compat.was_killed(llm),
                ) from error
            raise PreflightError(
                f"adapters: vLLM can't load {name!r} from {request.lora_path!r} ({short(error)})."
            ) from error
        self._loaded.add(request.lora_int_id)
