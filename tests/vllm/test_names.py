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


def test_signatures() -> None:
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.config import ModelConfig
    from vllm.inputs import tokens_input
    from vllm.renderers import ChatParams
    from vllm.renderers.base import BaseRenderer
    from vllm.renderers.registry import renderer_from_config
    from vllm.tokenizers import get_tokenizer
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import MPClient
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState
    from vllm.v1.engine.utils import CoreEngineProcManager
    from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    assert {"engine_args", "usage_context"} <= parameters(AsyncLLM.from_engine_args)
    assert list(inspect.signature(AsyncLLM.generate).parameters)[1:4] == [
        "prompt",
        "sampling_params",
        "request_id",
    ]
    assert isinstance(inspect.getattr_static(AsyncLLM, "errored"), property)
    assert {"self"} <= parameters(AsyncLLM.shutdown)
    assert parameters(CoreEngineProcManager.finished_procs) == {"self"}
    assert "self.resources.engine_manager" in inspect.getsource(MPClient)
    assert "self.processes: list[" in inspect.getsource(CoreEngineProcManager.__init__)
    assert "self.engine_core = " in inspect.getsource(AsyncLLM.__init__)
    assert parameters(AsyncLLM.get_tokenizer) == {"self"}
    assert "self.renderer" in inspect.getsource(AsyncLLM.__init__)
    assert "self.output_processor = OutputProcessor(" in inspect.getsource(AsyncLLM.__init__)
    assert "self.request_states: dict[" in inspect.getsource(OutputProcessor.__init__)
    assert "detokenizer" in parameters(RequestState.__init__)
    assert parameters(IncrementalDetokenizer.num_output_tokens) == {"self"}
    assert UsageContext.LLM_CLASS
    assert tokens_input([1, 2])["prompt_token_ids"] == [1, 2]
    assert SamplingParams().skip_clone is False
    assert "skip_clone" in inspect.getsource(AsyncLLM)
    assert {"messages", "params"} <= parameters(BaseRenderer.render_messages)
    assert {"chat_template", "chat_template_kwargs"} <= parameters(ChatParams)
    assert "config" in parameters(renderer_from_config)
    assert parameters(AsyncEngineArgs.create_model_config) == {"self"}
    assert parameters(ModelConfig.get_diff_sampling_param) == {"self"}
    assert parameters(ModelConfig.try_get_generation_config) == {"self"}
    assert {"trust_remote_code", "revision", "kwargs"} <= parameters(get_tokenizer)
    assert "sampling_params" in parameters(validate_xgrammar_grammar)
    assert {"sampling_params", "tokenizer"} <= parameters(validate_guidance_grammar)


def test_signatures_of_adapters() -> None:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from airflow_provider_raybatch.job.engine.vllm_compat_lora import lora_ranks, lora_request

    assert "lora_request" in parameters(AsyncLLM.generate)
    assert parameters(AsyncLLM.add_lora) == {"self", "lora_request"}
    assert parameters(AsyncLLM.remove_lora) == {"self", "lora_id"}
    assert {"method", "args"} <= parameters(AsyncLLM.collective_rpc)
    sizes = {"enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras", "worker_extension_cls"}
    assert sizes <= parameters(AsyncEngineArgs)
    made = lora_request("name", 7, "/folder")
    assert (made.lora_name, made.lora_int_id, made.lora_path) == ("name", 7, "/folder")
    assert {16, 512} <= set(lora_ranks())
    assert max(lora_ranks()) == MOST_RANK


def test_signatures_of_images() -> None:
    from vllm.entrypoints.chat_utils import BaseMultiModalContentParser
    from vllm.inputs import TokensPrompt
    from vllm.model_executor.model_loader import get_model_cls
    from vllm.model_executor.models.interfaces import SupportsMultiModal
    from vllm.multimodal.processing import BaseProcessingInfo
    from vllm.renderers import TokenizeParams
    from vllm.renderers.base import BaseRenderer

    assert "self.mm_processor" in inspect.getsource(BaseRenderer.__init__)
    assert inspect.getattr_static(BaseRenderer, "default_cmpl_tok_params").attrname
    assert inspect.getattr_static(BaseProcessingInfo, "allowed_mm_limits").attrname
    assert "add_special_tokens" in parameters(TokenizeParams)
    assert list(inspect.signature(BaseRenderer.process_for_engine).parameters)[1:3] == [
        "prompt",
        "arrival_time",
    ]
    assert {"prompt_token_ids", "multi_modal_data"} <= set(TokensPrompt.__annotations__)
    assert {"modality", "i"} <= parameters(SupportsMultiModal.get_placeholder_str)
    assert parameters(get_model_cls) == {"model_config"}
    assert "image_pil" in parameters(BaseMultiModalContentParser.parse_image_pil)


def test_signatures_of_reasoning_and_log_probabilities() -> None:
    from vllm import SamplingParams
    from vllm.logprobs import FlatLogprobs
    from vllm.reasoning import ReasoningParser, ReasoningParserManager
    from vllm.v1.engine.async_llm import AsyncLLM

    assert parameters(ReasoningParser.extract_reasoning) == {"self", "model_output", "request"}
    assert parameters(ReasoningParser.is_reasoning_end) == {"self", "input_ids"}
    assert isinstance(inspect.getattr_static(ReasoningParser, "reasoning_end_str"), property)
    assert parameters(ReasoningParserManager.get_reasoning_parser) == {"name"}
    assert parameters(ReasoningParserManager.import_reasoning_parser) == {"plugin_path"}
    assert "reasoning_parser_kwargs" in parameters(AsyncLLM.generate)
    assert SamplingParams(flat_logprobs=True).flat_logprobs
    lists = {"start_indices", "end_indices", "token_ids", "logprobs", "ranks"}
    assert lists <= parameters(FlatLogprobs.__init__)


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
    from airflow_provider_raybatch.job.engine.vllm_compat_pooling import pooling_params

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

    from airflow_provider_raybatch.job.request.openai_batch.messages import chat_of

    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    calls = [{**call, **one} for one in fields.get("tool_calls", ())]
    message = ChatMessage(role="assistant", **{**fields, "tool_calls": calls}).model_dump()
    of_openai = ChatCompletionMessage.model_validate(message).model_dump()
    asked = {"role": "assistant", **({"tool_calls": calls} if calls else {"content": "", **fields})}
    assert chat_of([message])[0] == chat_of([of_openai])[0] == [asked]


def test_parsers_of_tools() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser import ParserManager
    from vllm.tool_parsers import ToolParserManager

    from airflow_provider_raybatch.job.engine import vllm_compat_tools

    assert {"tool_parser_name", "enable_auto_tools"} <= parameters(ParserManager.get_parser)
    assert {"skip_special_tokens", "structured_outputs"} <= set(ChatCompletionRequest.model_fields)
    parser = vllm_compat_tools.tool_parser("hermes")
    assert {"model_output", "request", "enable_auto_tools"} <= parameters(parser.parse)
    assert {"request"} <= parameters(parser.adjust_request)
    assert vllm_compat_tools.tool_parsers() == sorted(ToolParserManager.list_registered())
