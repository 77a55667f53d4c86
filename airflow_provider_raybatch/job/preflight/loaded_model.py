# SPDX-License-Identifier: Apache-2.0
"""A model before its weights are loaded, as vLLM reads it: tokenizer, config, chats, encoder of requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of, version_parts
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.chat import ChatEncoder, chat_encoder, template_of
from airflow_provider_raybatch.job.engine.images import with_stand_ins
from airflow_provider_raybatch.job.engine.pair_encoder import pooling_encoder
from airflow_provider_raybatch.job.engine.vllm_args import engine_args
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.preflight.model_version import is_in_bucket
from airflow_provider_raybatch.job.row import Request

_OLDEST_VLLM = (0, 26)
_TOO_LONG = re.compile(r"max_model_len \((\d+)\) is greater than the derived max_model_len \(\w+=(\d+)")
"""What vLLM says, with a remedy that may make a model answer wrongly."""
_PROBES = (
    [{"role": "user", "content": "x"}],
    [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}],
)
_PACKAGES = {
    "fastsafetensors": "fastsafetensors",
    "instanttensor": "instanttensor",
    "runai_streamer": "runai_model_streamer",
    "runai_streamer_sharded": "runai_model_streamer",
    "tensorizer": "tensorizer",
}
"""What vLLM imports only when it loads the weights, by `load_format`."""


@dataclass(frozen=True)
class AskedModel:
    """A model, and what a job asks of it.

    :param requests: of the first rows.
    :param environment: the job's, with its token for the hub.
    """

    spec: BatchInferenceSpec
    requests: Sequence[Request]
    environment: dict[str, SecretStr]


@dataclass(frozen=True)
class LoadedModel:
    """A model's tokenizer and config for a job.

    :param args: for ``AsyncEngineArgs``.
    :param chats: renders chats as the engine will.
    :param encoder: turns requests into the tokens that the engine gets.
    """

    spec: BatchInferenceSpec
    args: dict[str, Any]
    tokenizer: Any
    config: Any
    chats: Chats
    encoder: ChatEncoder
    requests: Sequence[Request] = ()

    @property
    def context(self) -> int:
        """Tokens of the context."""
        return int(self.config.max_model_len)

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has."""
        return vllm_compat.vocabulary_size(self.config)

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The model's own sampling parameters."""
        return {} if self.spec.pools else vllm_compat.sampling_defaults(self.config)

    @property
    def template(self) -> str:
        """The text of the chat template; empty without one."""
        return str(self.spec.chat_template or getattr(self.tokenizer, "chat_template", None) or "")


def load_model(spec: BatchInferenceSpec, requests: Sequence[Request] = ()) -> LoadedModel:
    """Load tokenizer and config in a process that has vLLM.

    :raises PreflightError: vLLM is missing, can't load them, or refuses the engine's arguments.
    """
    check_version()
    args = engine_args(spec)
    check_loader(args)
    tokenizer, config = _tokenizer_and_config(args)
    chats = Chats(spec, config, tokenizer)
    made = spec, tokenizer, config, chats.engine_renderer
    encoder: ChatEncoder = pooling_encoder(*made) if spec.pools else chat_encoder(*made)
    return LoadedModel(spec, args, tokenizer, config, chats, encoder, requests)


class Chats:
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


def check_version() -> None:
    """:raises PreflightError: this process has no vLLM, or an old one."""
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


def check_loader(args: Mapping[str, Any]) -> None:
    """Check an engine's `load_format` and `model_loader_extra_config`.

    :param args: for ``AsyncEngineArgs``.
    :raises PreflightError: vLLM has no such loader, lacks its package, or refuses its configuration.
    """
    load_format = str(args.get("load_format", "auto")).lower()
    package = _PACKAGES.get(load_format)
    if package is not None and find_spec(package) is None:
        raise PreflightError(
            f"engine_args: load_format {load_format!r} needs {package.replace('_', '-')}, which the "
            "cluster's nodes lack; install it in their image, or leave load_format out."
        )
    if load_format == "auto" and not args.get("model_loader_extra_config"):
        return  # as vLLM is used nearly always
    try:
        vllm_compat.loader(args)
    except Exception as error:  # pydantic and each loader raise their own
        raise PreflightError(
            f"engine_args: vLLM refuses load_format {load_format!r} ({' '.join(str(error).split())[:300]})."
        ) from error


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
