# SPDX-License-Identifier: Apache-2.0
"""Every name of vLLM that vLLM does not promise to keep, in this one file.

Names are imported where they are used, so that a name that is gone breaks one function. `tests/vllm` checks
each of them against the installed vLLM.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import importlib
import importlib.util
import logging
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def start_engine(args: Mapping[str, Any]) -> Any:
    """Start vLLM's async engine.

    With the usage context of ``LLM()``, vLLM's scheduler takes 1024 sequences on one H200; with a server's,
    it takes 128.
    """
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    spawn_processes()
    return AsyncLLM.from_engine_args(_engine_args(args), usage_context=UsageContext.LLM_CLASS)


def _engine_args(args: Mapping[str, Any]) -> Any:
    """``AsyncEngineArgs``, also of arguments that only ``LLM()`` takes as plain values."""
    from vllm import AsyncEngineArgs
    from vllm.config import StructuredOutputsConfig

    given = copy.deepcopy(dict(args))  # vLLM writes into some
    if isinstance(structured := given.get("structured_outputs_config"), dict):
        given["structured_outputs_config"] = StructuredOutputsConfig(**structured)
    if isinstance(mode := given.get("compilation_config"), int):
        given["compilation_config"] = {"mode": mode}
    return AsyncEngineArgs(**given)


def spawn_processes() -> None:
    """Let engines start their processes by spawn everywhere, as vLLM does in Ray actors and on CPUs.

    A forked process outlives a killed parent, and keeps its GPU. With this variable set, vLLM no longer sets
    ``RAY_ADDRESS`` in an actor, and an engine process that starts workers on other nodes would find the Ray
    that was started last on its machine.
    """
    import ray

    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    if ray.is_initialized():
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


def keep_files_in(folder: Path | None) -> None:
    """Let engines put their sockets there. Only for engines with all processes on this node."""
    if folder is not None:
        os.environ.setdefault("VLLM_RPC_BASE_PATH", str(folder))


def kept_folder() -> Path | None:
    """The folder of :func:`keep_files_in`, in a process of the engine."""
    folder = os.environ.get("VLLM_RPC_BASE_PATH")
    return Path(folder) if folder else None


def use(folder: Path) -> None:
    """In a process of the engine, put torch's file store there; vLLM leaves it in ``TMPDIR``."""
    for name in ("uniproc_executor", "multiproc_executor"):
        executor: Any = sys.modules.get(f"vllm.v1.executor.{name}")
        if hasattr(executor, "get_file_store_init_method"):
            executor.get_file_store_init_method = lambda: f"file://{folder}/vllm_dist_{uuid.uuid4().hex}"


def import_engine() -> None:
    """Import what the processes of an engine import. What is missing, or fails, is imported later."""
    on = "cpu" if is_on_cpu() else "gpu"
    for name in (
        "vllm.engine.arg_utils",
        "vllm.v1.engine.async_llm",
        "vllm.v1.engine.core",
        "vllm.v1.executor.multiproc_executor",
        "vllm.v1.executor.uniproc_executor",
        f"vllm.v1.worker.{on}_worker",
        f"vllm.v1.worker.{on}_model_runner",
        "vllm.model_executor.model_loader",
    ):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


_GONE_SECONDS = 30.0
"""A killed process may take so long to free its memory; one that hangs in a driver is left behind."""


def stop_engine(llm: Any) -> None:
    """End the processes of an async engine and wait until their GPUs are free.

    vLLM kills them after 5 seconds, and does not wait for their end.
    """
    import psutil  # vLLM brings it

    engines = _engine_processes(llm)
    below = []
    for engine in engines:
        with contextlib.suppress(psutil.Error):
            below += psutil.Process(engine.pid).children(recursive=True)
    llm.shutdown()
    end = time.monotonic() + _GONE_SECONDS
    for engine in engines:
        engine.join(max(0.0, end - time.monotonic()))
    psutil.wait_procs(below, max(0.0, end - time.monotonic()))


def _engine_processes(llm: Any) -> list[Any]:
    """Its processes that are this one's children. Empty where vLLM does not tell."""
    try:
        return list(llm.engine_core.resources.engine_manager.processes)
    except AttributeError:
        return []


def engine_dead_error() -> type[Exception]:
    """Raised by vLLM when its engine process is gone."""
    from vllm.v1.engine.exceptions import EngineDeadError

    dead: type[Exception] = EngineDeadError
    return dead


def was_killed(llm: Any) -> bool:
    """Whether an engine process of a dead async engine ended by SIGKILL; ``False`` where vLLM does not tell.

    When a worker below it is killed, the engine process ends by itself.
    """
    try:
        codes = llm.engine_core.resources.engine_manager.finished_procs().values()
    except AttributeError:
        return False
    return -signal.SIGKILL in codes


def as_tokens(ids: list[int]) -> Any:
    """A prompt of token ids."""
    from vllm.inputs import tokens_input

    return tokens_input(ids)


def set_for_batch(params: Any) -> None:
    """Let vLLM use these parameters without a deep copy, and give one output per request, not per token."""
    from vllm.sampling_params import RequestOutputKind

    params.skip_clone = True
    params.flat_logprobs = True  # an object for each log probability keeps the garbage collector busy
    params.output_kind = RequestOutputKind.FINAL_ONLY


def tokens_in_flight(llm: Any) -> int:
    """Tokens generated so far for unfinished requests; 0 where vLLM does not tell."""
    try:
        states = list(llm.output_processor.request_states.values())
        return sum(state.detokenizer.num_output_tokens() for state in states)
    except (AttributeError, RuntimeError):  # RuntimeError: a request came or went meanwhile, in its thread
        return 0


def kv_cache_tokens(cache: Any) -> int:
    """Tokens that the KV cache holds, as vLLM logs them.

    A vLLM that keeps no such number has blocks alone, which layers with a sliding window share.
    """
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    return int(tokens or (cache.num_gpu_blocks or 0) * (cache.block_size or 0))


def source_of(file: str) -> str:
    """A file of the installed vLLM, whose import takes half a minute; empty where there is no vLLM."""
    found = importlib.util.find_spec("vllm")
    path = Path(found.origin).parent / file if found is not None and found.origin is not None else Path()
    return path.read_text("utf-8") if path.is_file() else ""


def installed_version() -> str:
    """Of vLLM; empty without one. Its builds for CPUs have distribution names of their own."""
    text = source_of("_version.py")
    version = re.search(r"^(?:__version__|version)\b[^'\"\n]*['\"]([^'\"]+)", text, re.MULTILINE)
    return version.group(1) if version else ""


SAMPLING = ("sampling_params.py", ("SamplingParams",))
ENGINE_ARGS = ("engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs"))
"""Where vLLM's names are: a file, and the classes whose fields they are."""


@functools.cache  # asked once a row
def sampling_names() -> tuple[frozenset[str], frozenset[str]] | None:
    """Parameters of ``SamplingParams`` and of its ``structured_outputs``; ``None`` where there is no vLLM."""
    source = source_of(SAMPLING[0])
    return (
        (fields_of(source, SAMPLING[1]), fields_of(source, ("StructuredOutputsParams",))) if source else None
    )


def engine_arg_names() -> frozenset[str] | None:
    """Arguments of ``AsyncEngineArgs``; ``None`` where there is no vLLM."""
    source = source_of(ENGINE_ARGS[0])
    return fields_of(source, ENGINE_ARGS[1]) if source else None


def fields_of(source: str, classes: Collection[str]) -> frozenset[str]:
    """The public fields of dataclasses and structs, without importing what they import."""
    return frozenset({
        inner.target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name in classes
        for inner in node.body
        if isinstance(inner, ast.AnnAssign)
        and isinstance(inner.target, ast.Name)
        and not inner.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(inner.annotation)
    })


def load_tokenizer(name: str, **options: Any) -> Any:
    """The tokenizer as vLLM loads it.

    :param options: such as `tokenizer_mode`, `trust_remote_code`, `revision`.
    """
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(name, **options)


def is_on_cpu() -> bool:
    """Whether vLLM would run on CPUs here."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def has_bfloat16_kernels() -> bool:
    """Whether oneDNN computes in bfloat16 on this CPU, as with AVX-512 or AMX."""
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def model_config(args: Mapping[str, Any]) -> Any:
    """The model's config as an engine of these arguments has it. Needs no engine and no GPU."""
    return _engine_args(args).create_model_config()


def generates(config: Any) -> bool:
    """Whether a model of this config generates text; others embed or classify."""
    return str(getattr(config, "runner_type", "generate")) == "generate"


def vocabulary_size(config: Any) -> int:
    """Tokens of a model of this config; no bound where the config doesn't say."""
    return int(config.get_vocab_size() or sys.maxsize)


def loader(args: Mapping[str, Any]) -> Any:
    """The loader of an engine's weights.

    :raises Exception: vLLM has no such loader, or the loader refuses its configuration.
    """
    from vllm.model_executor.model_loader import get_model_loader

    return get_model_loader(_engine_args(args).create_load_config())


def sampling_defaults(config: Any) -> dict[str, Any]:
    """Sampling parameters of a model's `generation_config`, with `override_generation_config` applied."""
    return dict(config.get_diff_sampling_param())


def generation_config(config: Any) -> dict[str, Any]:
    """The whole `generation_config` of a model, stop token ids included."""
    return dict(config.try_get_generation_config())


def renderer_of(llm: Any) -> Any:
    """The renderer of a running async engine."""
    return llm.renderer


def renderer_for(config: Any) -> Any:
    """The renderer of a model without an engine."""
    from vllm.config import ObservabilityConfig, ParallelConfig
    from vllm.renderers.registry import renderer_from_config

    # The whole config needs the accelerator; renderers read no more of it than this.
    whole = SimpleNamespace(
        model_config=config,
        parallel_config=ParallelConfig(),
        observability_config=ObservabilityConfig(),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
    )
    return renderer_from_config(whole)


def chat_renderer(
    renderer: Any, template: str | None, template_kwargs: Mapping[str, Any]
) -> Callable[[list[dict[str, Any]]], str | list[int]]:
    """A function that renders a chat as ``LLM.chat`` does: to text, or with some tokenizers to token ids."""
    from vllm.renderers import ChatParams
    from vllm.utils.mistral import is_mistral_tokenizer

    # It logs a traceback for each row that a template refuses; the row's failure has the same reason.
    logging.getLogger("vllm.renderers.hf").setLevel(logging.CRITICAL)
    params = ChatParams(
        chat_template=template,
        chat_template_kwargs={
            "add_generation_prompt": True,
            **template_kwargs,
            "tokenize": bool(is_mistral_tokenizer(renderer.tokenizer)),
        },
    )

    def render(messages: list[dict[str, Any]]) -> str | list[int]:
        if any("tool_calls" in message for message in messages):
            messages = copy.deepcopy(messages)  # vLLM parses their arguments in place
        try:
            _, prompt = renderer.render_messages(messages, params)
        except ValueError as error:  # vLLM wraps the template's own error in it
            raise error.__cause__ or error from None
        if "prompt_token_ids" in prompt:
            return list(prompt["prompt_token_ids"])
        return str(prompt["prompt"])

    return render
