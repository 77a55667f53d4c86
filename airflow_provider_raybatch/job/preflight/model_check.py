# SPDX-License-Identifier: Apache-2.0
"""Checks a model before its weights are loaded, in a process that has vLLM."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of, hex_digest, version_parts
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.base import with_response
from airflow_provider_raybatch.job.engine.chat import (
    ChatEncoder,
    chat_encoder,
    prints_the_date,
    template_of,
)
from airflow_provider_raybatch.job.engine.images import with_stand_ins
from airflow_provider_raybatch.job.engine.pair_encoder import pooling_encoder
from airflow_provider_raybatch.job.engine.request_values import absent_bos, check_token_ids, surplus_tokens
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.failures.public_reasons import refusal_by
from airflow_provider_raybatch.job.planning.context_length import ContextLength
from airflow_provider_raybatch.job.planning.model_fit import ModelSizes
from airflow_provider_raybatch.job.preflight.adapter_check import (
    CheckedAdapter,
    check_adapters,
    lora_arguments,
)
from airflow_provider_raybatch.job.preflight.image_check import check_images, refuse_text_model
from airflow_provider_raybatch.job.preflight.memory_check import model_sizes
from airflow_provider_raybatch.job.preflight.model_files import files_of
from airflow_provider_raybatch.job.preflight.model_loader import check_bucket, check_loader, is_in_bucket
from airflow_provider_raybatch.job.preflight.model_look import refuse_by_files, refuse_missing, wrong_task
from airflow_provider_raybatch.job.preflight.model_version import hub_token, model_digest, pinned_revisions
from airflow_provider_raybatch.job.preflight.reasoning_check import check_reasoning
from airflow_provider_raybatch.job.preflight.sampling_check import check_pooling, check_sampling, compact_json
from airflow_provider_raybatch.job.preflight.tool_check import check_calls
from airflow_provider_raybatch.job.row import Request, RowFailure

_OLDEST_VLLM = (0, 26)
_TOO_LONG = re.compile(r"max_model_len \((\d+)\) is greater than the derived max_model_len \(\w+=(\d+)")
"""What vLLM says, with a remedy that may make a model answer wrongly."""
_PROBES = (
    [{"role": "user", "content": "x"}],
    [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}],
)


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


def check_model(
    spec: BatchInferenceSpec, requests: Sequence[Request], environment: dict[str, SecretStr]
) -> ModelCheck:
    """Check engine arguments, sampling, model files, chat template and the length of the prompts.

    :raises PreflightError: one sentence about the first problem found.
    """
    from airflow_provider_raybatch.job.engine.vllm_args import check_names, engine_args

    check_names(spec)
    set_environment(environment)
    if is_in_bucket(spec.model):
        check_bucket(spec.model)
    refuse_missing(spec)
    if (files := refuse_by_files(spec, environment)) is not None:
        refuse_text_model(spec, requests, files)
    adapters = check_adapters(spec, environment)
    _check_version()
    lora = lora_arguments(spec, adapters)
    args = engine_args(spec)
    params = None if spec.pools else check_sampling(spec)
    check_loader(args)
    tokenizer, config = _tokenizer_and_config(args)
    vocabulary = vllm_compat.vocabulary_size(config)
    chats = _Chats(spec, config, tokenizer)
    about_reasoning = ""
    if spec.pools:
        check_pooling(spec, config)
        if not (spec.compares or spec.asks_by_lines):  # lists of texts are not chats
            _check_chat(spec, tokenizer, requests)
    else:
        if not vllm_compat.generates(config):  # its files may not tell
            raise PreflightError(f"model: {spec.model!r} {wrong_task('generate', 'is a pooling model')}.")
        check_token_ids(params, tokenizer, vocabulary)
        _check_chat(spec, tokenizer, requests)
        about_reasoning = check_reasoning(spec, tokenizer, chats.text, requests)
        check_calls(spec, tokenizer, chats.text, requests)
    template = _template_text(spec, tokenizer)
    encoder = _encoder(spec, tokenizer, config, chats)
    check_images(spec, requests, encoder.images)
    found = _check_prompts(spec, config, tokenizer, encoder, requests)
    prints_date = prints_the_date(spec, tokenizer)
    revisions = pinned_revisions(args, config)
    revision = revisions["revision"] or str(args.get("revision") or "")
    return replace(
        found,
        special_tokens=tuple(encoder.special_tokens),
        digests=Digests(
            model=model_digest(spec.model, revision) + _digest_of_generation_config(args, config),
            tokenizer=_digest(_tokenizer_state(tokenizer)),
            chat_template=_digest(template + (chats.probed() if prints_date else "")),
            spec=spec.response_digest,
            adapters={name: one.digest for name, one in adapters.items()},
        ),
        adapters=adapters,
        lora_args=lora,
        revisions={name: value for name, value in revisions.items() if value},
        surplus_tokens=tuple(surplus_tokens(tokenizer, vocabulary)),
        about_reasoning=about_reasoning,
        structured_outputs_config={} if spec.pools else compact_json(spec, requests, tokenizer),
        prints_date=prints_date,
        sizes=_sizes(spec, config, environment),
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


def prompt_encoder(spec: BatchInferenceSpec) -> tuple[ChatEncoder, int, dict[str, Any]]:
    """What turns requests into the tokens that the engine gets, without an engine.

    :returns: it, tokens of the context, and the model's sampling parameters.
    :raises PreflightError: the model can't be loaded.
    """
    _check_version()
    from airflow_provider_raybatch.job.engine.vllm_args import engine_args

    tokenizer, config = _tokenizer_and_config(engine_args(spec))
    encoder = _encoder(spec, tokenizer, config, _Chats(spec, config, tokenizer))
    return encoder, int(config.max_model_len), _sampling_defaults(spec, config)


def _sampling_defaults(spec: BatchInferenceSpec, config: Any) -> dict[str, Any]:
    return {} if spec.pools else vllm_compat.sampling_defaults(config)


def _encoder(spec: BatchInferenceSpec, tokenizer: Any, config: Any, chats: _Chats) -> ChatEncoder:
    if spec.pools:
        return pooling_encoder(spec, tokenizer, config, chats.engine_renderer)
    return chat_encoder(spec, tokenizer, config, chats.engine_renderer)


def _template_text(spec: BatchInferenceSpec, tokenizer: Any) -> str:
    return str(spec.chat_template or getattr(tokenizer, "chat_template", None) or "")


def _check_prompts(
    spec: BatchInferenceSpec, config: Any, tokenizer: Any, encoder: ChatEncoder, requests: Sequence[Request]
) -> ModelCheck:
    """What the prompts show.

    :raises PreflightError: none becomes tokens, or all exceed the context.
    """
    context, defaults = int(config.max_model_len), _sampling_defaults(spec, config)
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
        absent_bos=absent_bos(tokenizer, own_chats),
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


class _Chats:
    """Renders chats as the engine will."""

    def __init__(self, spec: BatchInferenceSpec, config: Any, tokenizer: Any) -> None:
        self._template = template_of(spec, tokenizer)
        self._variables = spec.template_variables
        self.engine_renderer = vllm_compat.renderer_for(config)

    def renderer(self, **variables: Any) -> Callable[[list[dict[str, Any]]], str | list[int]]:
        """With these variables besides the job's own."""
        return vllm_compat.chat_renderer(
            self.engine_renderer, self._template, {**self._variables, **variables}
        )

    def text(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """One chat; empty where its template refuses it, or makes no text."""
        try:
            made = self.renderer(**variables)(with_stand_ins(messages))
        except Exception:  # a template may raise anything
            return ""
        return made if isinstance(made, str) else ""

    def probed(self) -> str:
        """What the template makes of some chats today."""
        return "".join(map(self.text, _PROBES))


def _check_version() -> None:
    try:
        import vllm
    except ImportError as error:
        raise PreflightError(
            f"engine: vLLM is not installed on the cluster's nodes ({error}); install vllm 0.26 or newer "
            "there, use an image that has it, or try the DAG with engine='echo'; where GPU nodes are "
            "still to come, name their accelerator_type."
        ) from error
    version = str(vllm.__version__)
    if version_parts(version) < _OLDEST_VLLM:
        raise PreflightError(f"engine: the cluster has vLLM {version}; 0.26 or newer is needed.")


def _tokenizer_and_config(args: dict[str, Any]) -> tuple[Any, Any]:
    if not is_in_bucket(args["model"]):
        tokenizer = _load_tokenizer(args)  # first, since it says better what is wrong with a name
        return tokenizer, _model_config(args)
    config = _model_config(args)  # vLLM copies all but the weights into a folder
    return _load_tokenizer({**args, "tokenizer": config.tokenizer}), config


def _load_tokenizer(args: dict[str, Any]) -> Any:
    try:
        return vllm_compat.load_tokenizer(
            args.get("tokenizer") or args["model"],
            tokenizer_mode=args.get("tokenizer_mode", "auto"),
            trust_remote_code=bool(args.get("trust_remote_code", False)),
            revision=args.get("tokenizer_revision") or args.get("revision"),
        )
    except Exception as error:  # huggingface_hub, transformers and tokenizers each raise their own
        raise PreflightError(
            f"model: {args['model']!r} can't be loaded ({short(error)}); check the name (a "
            "folder needs its absolute path), that every node can read the folder or reach the hub, and "
            "hf_conn_id where the model is gated."
        ) from error


def _model_config(args: dict[str, Any]) -> Any:
    try:
        return vllm_compat.model_config(args)
    except Exception as error:  # pydantic, transformers and vLLM each raise their own
        if found := _TOO_LONG.search(str(error)):
            given, own = map(int, found.groups())
            raise PreflightError(
                f"engine_args: max_model_len: {given:,} is more than the {count_of(own, 'token')} that model "
                f"{args['model']!r} takes; lower it, or leave it out."
            ) from error
        raise PreflightError(
            f"engine_args: vLLM can't use model {args['model']!r} with these arguments ({short(error)})."
        ) from error


def _check_chat(spec: BatchInferenceSpec, tokenizer: Any, requests: Sequence[Request]) -> None:
    chat = next((request for request in requests if request.messages is not None), None)
    if chat is None or spec.chat_template or getattr(tokenizer, "chat_template", None):
        return
    if type(tokenizer).__name__.startswith("Mistral"):
        return  # its chat format is code, not a template
    raise PreflightError(
        f"chat_template: the tokenizer of {spec.model!r} has none; give one with chat_template, or "
        "send raw prompts with prompt_column."
    )


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
