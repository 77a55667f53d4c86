# SPDX-License-Identifier: Apache-2.0
"""The engine and vLLM's own ``LLM``, both with one model, and what both answer to equal requests.

A test module imports the fixture `engine`, which has the demo's model like the `llm` of ``tests/vllm``, or
makes its own of :func:`own_llm` and :func:`own_engine`; each starts one engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
from vllm import platforms

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.engine_processes import own_processes
from tests.support.ray_processes import vllm_engines
from tests.support.real_model import ARGS, spec

LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 3, "max_cpu_loras": 3}


@pytest.fixture(scope="module")
def engine(llm: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    tmp_path_factory.getbasetemp()  # made before the folder of temporary files is another
    with own_engine(spec(engine_args={**ARGS, **LORA})) as made:
        yield made


@contextlib.contextmanager
def own_llm(**args: Any) -> Iterator[Any]:
    """VLLM's ``LLM`` of these arguments."""
    from vllm import LLM

    with pytest.MonkeyPatch.context() as patch:
        if platforms.current_platform.is_cpu():
            # The engine runs in this process, because a second engine process would cost half a minute. A
            # process that uses CUDA can't start another engine.
            patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

        yield LLM(**args)


@contextlib.contextmanager
def own_engine(asked: BatchInferenceSpec) -> Iterator[Any]:
    """The engine of a job, with its event loop."""
    from vllm import envs

    from airflow_provider_raybatch.job.engine_process import server

    with own_processes() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        made: Any = server.open_vllm(asked)
        made.loop = loop
        before = set(vllm_engines())
        try:
            yield made
            # What a killed engine would leave, besides caches, is in the folder that a later job deletes.
            left = [path.name for path in scratch.iterdir() if "inductor" not in path.name]
        finally:
            made.close()
            envs.disable_envs_cache()  # vLLM reads its variables once for all engines
        assert [name.startswith("raybatch-engine-") for name in left] == [True], left
        assert before
        assert before.isdisjoint(vllm_engines()), "a closed engine leaves a process"
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()


def ours(engine: Any, *requests: Request) -> list[Any]:
    """Handle rows as a replica does: encode, generate in parallel, decode."""

    async def generate(encoded: list[Any]) -> list[Any]:
        return await asyncio.gather(*(engine.generate(one) for one in encoded))

    encoded = engine.encode(list(requests))
    assert not any(isinstance(one, RowFailure) for one in encoded), encoded
    return engine.decode(engine.loop.run_until_complete(generate(encoded)))


def theirs(llm: Any, request: Request) -> Any:
    from airflow_provider_raybatch.job.engine.vllm_args import sampling_params

    params = sampling_params(request.sampling)
    if request.messages is None:
        (output,) = llm.generate([request.prompt], params, use_tqdm=False)
    else:
        (output,) = llm.chat([copy.deepcopy(request.messages)], params, use_tqdm=False)
    return output


def assert_equal(llm: Any, engine: Any, *requests: Request) -> list[Any]:
    responses = ours(engine, *requests)
    for request, response in zip(requests, responses, strict=True):
        expected = theirs(llm, request)
        assert response.input_tokens == len(expected.prompt_token_ids), request
        actual = [
            (one.text, one.finish_reason, one.output_tokens + one.filled_tokens)
            for one in response.completions
        ]
        assert actual == [(one.text, one.finish_reason, len(one.token_ids)) for one in expected.outputs], (
            request
        )
    return responses
