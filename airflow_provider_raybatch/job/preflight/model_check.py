# SPDX-License-Identifier: Apache-2.0
"""Checks a model before its weights are loaded, in a process that has vLLM."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of, hex_digest
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.base import with_response
from airflow_provider_raybatch.job.engine.chat import (
    prints_the_date,
)
from airflow_provider_raybatch.job.engine.request_values import absent_bos, surplus_tokens
from airflow_provider_raybatch.job.engine.vllm_args import check_names
from airflow_provider_raybatch.job.failures.public_reasons import refusal_by
from airflow_provider_raybatch.job.planning.context_length import ContextLength
from airflow_provider_raybatch.job.planning.model_fit import ModelSizes
from airflow_provider_raybatch.job.preflight.adapter_check import (
    ADAPTERS,
    LORA,
    CheckedAdapter,
    CheckedAdapters,
    LoraArguments,
)
from airflow_provider_raybatch.job.preflight.check import Check, Facts, first_failure
from airflow_provider_raybatch.job.preflight.image_check import IMAGES, TEXT_MODEL
from airflow_provider_raybatch.job.preflight.loaded_model import (
    AskedModel,
    LoadedModel,
    check_version,
    load_model,
)
from airflow_provider_raybatch.job.preflight.memory_check import model_sizes
from airflow_provider_raybatch.job.preflight.model_files import (
    files_of,
    refuse_by_files,
    refuse_missing,
)
from airflow_provider_raybatch.job.preflight.model_version import (
    check_bucket,
    hub_token,
    is_in_bucket,
    model_digest,
    pinned_revisions,
)
from airflow_provider_raybatch.job.preflight.parser_check import CALLS, REASONING, ReasoningNote
from airflow_provider_raybatch.job.preflight.sampling_check import GENERATION, POOLING, SAMPLING, compact_json
from airflow_provider_raybatch.job.row import RowFailure


@dataclass(frozen=True)
class ModelCheck:
    """What the check of a model found.

    :param sampled: how many of the requests become tokens.
    :param failures: of the requests without a prompt that leaves room for a response, by place.
    :param truncated: how many prompts are cut to leave room.
    :param special_tokens: texts that the tokenizer takes for special tokens.
    :param longest: tokens of the longest prompt.
    :param revisions: engine arguments that pin the version of the model that was checked.
    :param surplus_tokens: of the tokenizer, which the model lacks.
    :param absent_bos: token with which the model's texts begin, and no chat of the user's template.
    :param about_reasoning: a warning about the reasoning parser; empty without one.
    :param structured_outputs_config: engine argument for JSON without white space; empty if none is set.
    :param prints_date: whether the chat template prints the date.
    :param sizes: what decides the memory that the model needs; ``None`` if that is not known.
    :param needed: tokens of the longest prompt that fits the context, with its response; of a kept check, at
        most so many.
    :param is_kept: whether an earlier job made this check, for other rows.
    :param length: of the context of this job's engines; ``None`` until the cluster is known.
    :param kv_cache_tokens: that an engine's KV cache is expected to hold; 0 if that is not known.
    :param adapters: those of the job, by name.
    :param lora_args: engine arguments for them.
    """

    sampled: int = 0
    failures: tuple[tuple[int, RowFailure], ...] = ()
    truncated: int = 0
    special_tokens: tuple[str, ...] = ()
    longest: int = 0
    context: int = 0
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    digests: Digests = field(default_factory=Digests)
    revisions: dict[str, str] = field(default_factory=dict)
    surplus_tokens: tuple[str, ...] = ()
    absent_bos: str = ""
    about_reasoning: str = ""
    structured_outputs_config: dict[str, Any] = field(default_factory=dict)
    prints_date: bool = False
    sizes: ModelSizes | None = None
    needed: int = field(default=0, compare=False)  # of this job's rows, as is_kept
    is_kept: bool = field(default=False, compare=False)
    length: ContextLength | None = None
    kv_cache_tokens: int = 0

    def shown(self) -> dict[str, object]:
        """Sizes of the engine that were derived from the model, for the manifest and for `raybatch plan`."""
        tokens = {"value": self.kv_cache_tokens, "reason": "expected from the model's config and the GPU"}
        return {
            **({} if self.length is None else self.length.shown()),
            **({"kv_cache_tokens": tokens} if self.kv_cache_tokens else {}),
        }

    adapters: dict[str, CheckedAdapter] = field(default_factory=dict)
    lora_args: dict[str, Any] = field(default_factory=dict)


def _names(asked: AskedModel) -> None:
    check_names(asked.spec)


def _bucket(asked: AskedModel) -> None:
    if is_in_bucket(asked.spec.model):
        check_bucket(asked.spec.model)


def _load(asked: AskedModel) -> LoadedModel:
    return load_model(asked.spec, asked.requests)


def _chat(model: LoadedModel) -> None:
    """Lists of texts, which some pooling models take, are not chats."""
    spec = model.spec
    chat = next((request for request in model.requests if request.messages is not None), None)
    if chat is None or model.template or (spec.pools and (spec.compares or spec.asks_by_lines)):
        return
    if type(model.tokenizer).__name__.startswith("Mistral"):
        return  # its chat format is code, not a template
    raise PreflightError(
        f"chat_template: the tokenizer of {spec.model!r} has none; give one with chat_template, or "
        "send raw prompts with prompt_column."
    )


def _prompts(model: LoadedModel) -> ModelCheck:
    """What the prompts show.

    :raises PreflightError: none becomes tokens, or all exceed the context.
    """
    spec, encoder, requests, context = model.spec, model.encoder, model.requests, model.context
    defaults = model.sampling_defaults
    failures: list[tuple[int, RowFailure]] = []
    own_chats: list[list[int]] = []
    lengths: list[int] = []
    truncated = needed = 0
    for place, (request, ids) in enumerate(zip(requests, encoder.encode(requests), strict=True)):
        fitted = ids
        if not isinstance(ids, RowFailure):
            longest = encoder.longest(ids)
            lengths.append(longest)
            if spec.chat_template and request.messages is not None:
                own_chats.append(ids)
            most = {**defaults, **spec.sampling, **request.sampling}.get("max_tokens")
            fitted = encoder.fitted(request, ids, context, most)
            needed = max(needed, with_response(longest, most, context))
        if isinstance(fitted, RowFailure):
            failures.append((place, fitted))
        else:
            truncated += fitted is not ids
    if len(failures) == len(requests) and not spec.answers_lines:
        _refuse_all([failure for _, failure in failures], lengths, context)
    return ModelCheck(
        sampled=len(lengths),
        failures=tuple(failures),
        truncated=truncated,
        longest=max(lengths, default=0),
        needed=needed,
        context=context,
        generation_defaults=defaults,
        absent_bos=absent_bos(model.tokenizer, own_chats),
    )


def _refuse_all(failures: Sequence[RowFailure], lengths: Sequence[int], context: int) -> None:
    """:raises PreflightError: no prompt becomes tokens, or all exceed the context."""
    if failures and not lengths:
        argument = {"template": "chat_template", "media": "images"}.get(failures[0].step, "prompt")
        rows = count_of(len(failures), "row")
        none = f"{argument}: none of the first {rows} becomes tokens; the first fails"
        raise refusal_by(none, failures[0])
    if lengths and min(lengths) >= context:
        raise PreflightError(
            f"prompt: all of the first {count_of(len(lengths), 'prompt')} exceed the model's context of "
            f"{count_of(context, 'token')} (the longest has {max(lengths):,}); shorten them, raise "
            "max_model_len in engine_args if the model allows, or cut values with on_overlong='truncate'."
        )


FILES = (Check(refuse_by_files), TEXT_MODEL)
MODEL_CHECKS = (
    Check(_names),
    Check(_bucket),
    Check(refuse_missing),
    *FILES,
    ADAPTERS,
    Check(check_version),
    LORA,
    SAMPLING,
    Check(_load),
    POOLING,
    GENERATION,
    Check(_chat),
    REASONING,
    CALLS,
    IMAGES,
    Check(_prompts),
)
"""First what needs no vLLM, whose import takes long."""


def check_model(asked: AskedModel) -> ModelCheck:
    """Check engine arguments, sampling, model files, chat template and the length of the prompts.

    :raises PreflightError: one sentence about the first problem found.
    """
    set_environment(asked.environment)
    facts = Facts(asked)
    first_failure(MODEL_CHECKS, facts)
    spec, model, adapters = asked.spec, facts[LoadedModel], facts[CheckedAdapters]
    revisions = pinned_revisions(model.args, model.config)
    prints_date = prints_the_date(spec, model.tokenizer)
    return replace(
        facts[ModelCheck],
        special_tokens=tuple(model.encoder.special_tokens),
        digests=_digests(model, revisions["revision"], adapters, prints_date),
        adapters=dict(adapters),
        lora_args=dict(facts[LoraArguments]),
        revisions={name: value for name, value in revisions.items() if value},
        surplus_tokens=tuple(surplus_tokens(model.tokenizer, model.vocabulary)),
        about_reasoning=facts[ReasoningNote].text,
        structured_outputs_config={} if spec.pools else compact_json(spec, asked.requests, model.tokenizer),
        prints_date=prints_date,
        sizes=_sizes(spec, model.config, asked.environment),
    )


def _digests(model: LoadedModel, revision: str, adapters: CheckedAdapters, prints_date: bool) -> Digests:
    """Of all that decides a response besides the request."""
    spec, args, config = model.spec, model.args, model.config
    revision = revision or str(args.get("revision") or "")
    return Digests(
        model=model_digest(spec.model, revision) + _digest_of_generation_config(args, config),
        tokenizer=_digest(_tokenizer_state(model.tokenizer)),
        chat_template=_digest(model.template + (model.chats.probed() if prints_date else "")),
        spec=spec.response_digest,
        adapters={name: one.digest for name, one in adapters.items()},
    )


def _sizes(spec: BatchInferenceSpec, config: Any, environment: dict[str, SecretStr]) -> ModelSizes | None:
    """From the config as vLLM has completed it: files may leave sizes out that equal their defaults."""
    found = None
    with contextlib.suppress(Exception):  # configs may be code, and each store raises its own
        completed, version = config.hf_config.to_dict(), vllm_compat.installed_version()
        found = model_sizes(completed, None, version)
        if found is not None and found.shape.needs_files:  # the hub is asked for them
            files = files_of(spec.model, spec.engine_args.get("revision"), hub_token(environment))
            found = model_sizes(completed, files, version)
    return found


def _tokenizer_state(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return str(backend.to_str()) if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)


def _digest_of_generation_config(args: dict[str, Any], config: Any) -> str:
    """Of one in a folder of its own; the model's is among the model's files."""
    if args.get("generation_config", "auto") in {"auto", "vllm"}:
        return ""
    return "-" + hex_digest(json.dumps(vllm_compat.generation_config(config), sort_keys=True, default=str))


def _digest(text: str) -> str:
    return hex_digest(text) if text else ""
