# SPDX-License-Identifier: Apache-2.0
"""Semi-private names of vLLM are unchanged in the installed vLLM; no engine starts."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments import vllm_names
from airflow_provider_raybatch.job.preflight.adapter_check import MOST_RANK

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parents[2] / "airflow_provider_raybatch"
COMPAT = sorted(PACKAGE.glob("job/engine/vllm_compat*.py"))
PUBLIC = {"vllm.AsyncEngineArgs", "vllm.SamplingParams"}


def names_of_vllm(path: Path) -> set[str]:
    """Return the dotted names that a module imports from vLLM."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_only_one_module_knows_them() -> None:
    elsewhere = {
        name for path in PACKAGE.rglob("*.py") if path not in COMPAT for name in names_of_vllm(path) - PUBLIC
    }
    assert elsewhere == set()
    assert all(names_of_vllm(path) - PUBLIC for path in COMPAT)


@pytest.mark.parametrize("name", sorted(PUBLIC.union(*map(names_of_vllm, COMPAT))))
def test_the_name_is_there(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(__import__(module, fromlist=[attribute]), attribute)


def test_engines_start_their_processes_by_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.utils.system_utils import get_mp_context

    from airflow_provider_raybatch.job.engine import vllm_compat

    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    assert get_mp_context().get_start_method() == "fork"
    vllm_compat.spawn_processes()
    assert get_mp_context().get_start_method() == "spawn"


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_what_no_engine_of_these_tests_shows() -> None:
    """How an engine dies, and what vLLM would only be slower without."""
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import MPClient
    from vllm.v1.engine.utils import CoreEngineProcManager
    from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    from airflow_provider_raybatch.job.engine.vllm_compat_models import lora_ranks

    assert isinstance(inspect.getattr_static(AsyncLLM, "errored"), property)
    assert parameters(CoreEngineProcManager.finished_procs) == {"self"}
    assert "self.resources.engine_manager" in inspect.getsource(MPClient)
    assert "self.processes: list[" in inspect.getsource(CoreEngineProcManager.__init__)
    assert SamplingParams().skip_clone is False
    assert "skip_clone" in inspect.getsource(AsyncLLM)
    assert "sampling_params" in parameters(validate_xgrammar_grammar)
    assert {"sampling_params", "tokenizer"} <= parameters(validate_guidance_grammar)
    assert {16, 512} <= set(lora_ranks())
    assert max(lora_ranks()) == MOST_RANK


def test_signatures_of_pooling() -> None:
    from vllm import PoolingParams
    from vllm.config import ModelConfig
    from vllm.outputs import PoolingRequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

    assert list(inspect.signature(AsyncLLM.encode).parameters)[1:4] == [
        "prompt",
        "pooling_params",
        "request_id",
    ]
    assert inspect.iscoroutinefunction(AsyncLLM.get_supported_tasks)
    assert {"task", "dimensions", "use_activation"} <= parameters(PoolingParams)
    assert list(inspect.signature(PoolingParams.verify).parameters) == ["self", "model_config"]
    assert {"outputs", "finished", "num_cached_tokens"} <= parameters(PoolingRequestOutput.__init__)
    assert "self.encoder_config = " in inspect.getsource(ModelConfig)
    assert "extra_kwargs" in parameters(PoolingParams)
    assert isinstance(inspect.getattr_static(ModelConfig, "use_sep_token"), property)


def test_pooling_has_a_task_always() -> None:
    """Without one, vLLM silently gives a vector for each token."""
    from airflow_provider_raybatch.job.engine.vllm_compat_models import pooling_params

    made = pooling_params("embed", {"dimensions": 2, "use_activation": False})
    assert (made.task, made.dimensions, made.use_activation) == ("embed", 2, False)
    told = pooling_params("score", {}, 0)
    assert (told.task, told.extra_kwargs) == ("classify", {"compressed_token_type_ids": 0})


def test_names_are_read_without_importing_vllm() -> None:
    import vllm
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    from airflow_provider_raybatch.job.engine import vllm_compat

    names = vllm_compat.sampling_names()
    assert names is not None
    public = {name for name in parameters(SamplingParams) if not name.startswith("_")}
    assert names[0] == public
    assert names[1] == {name for name in parameters(StructuredOutputsParams) if not name.startswith("_")}
    fields = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    arguments = {name for name in fields if not name.startswith("_")}
    assert vllm_compat.engine_arg_names() == arguments
    assert arguments <= vllm_names.ENGINE_ARGS
    assert public <= vllm_names.SAMPLING
    assert vllm_compat.installed_version() == vllm.__version__


@pytest.mark.parametrize("fields", [{"content": "4", "reasoning": "2 and 2"}, {"tool_calls": [{}]}, {}])
def test_messages_of_servers_are_asked_again(fields: dict[str, Any]) -> None:
    from openai.types.chat import ChatCompletionMessage
    from vllm.entrypoints.openai.chat_completion.protocol import ChatMessage

    from airflow_provider_raybatch.job.request.openai_batch.line import chat_of

    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    calls = [{**call, **one} for one in fields.get("tool_calls", ())]
    message = ChatMessage(role="assistant", **{**fields, "tool_calls": calls}).model_dump()
    of_openai = ChatCompletionMessage.model_validate(message).model_dump()
    asked = {"role": "assistant", **({"tool_calls": calls} if calls else {"content": "", **fields})}
    assert chat_of([message])[0] == chat_of([of_openai])[0] == [asked]


def test_parsers_of_tools() -> None:
    from vllm.tool_parsers import ToolParserManager

    from airflow_provider_raybatch.job.engine import vllm_compat_parsers

    assert vllm_compat_parsers.tool_parsers() == sorted(ToolParserManager.list_registered())
