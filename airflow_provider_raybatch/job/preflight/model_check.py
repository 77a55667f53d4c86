# SPDX-License-Identifier: Apache-2.0
"""What can be known of a model before its weights are loaded.

Runs as a Ray task where the engine will run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.credentials import set_environment
from airflow_provider_raybatch.job.engine.chat import ChatEncoder
from airflow_provider_raybatch.job.request import Request, RowFailure

_OLDEST_VLLM = (0, 26)
_GENERATION_NAMES = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")
_HASHED_WHOLE = 64 * 1024 * 1024
_SAMPLES, _SAMPLE_BYTES = 64, 64 * 1024


@dataclass(frozen=True)
class Checked:
    """What the check found.

    :param overlong: of the sampled prompts, how many leave no room for a response.
    :param longest: tokens of the longest sampled prompt.
    """

    sampled: int = 0
    overlong: int = 0
    longest: int = 0
    context: int = 0
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    digests: Digests = field(default_factory=Digests)


def check_model(
    spec: BatchInferenceSpec, requests: Sequence[Request], environment: dict[str, SecretStr]
) -> Checked:
    """Check engine arguments, sampling, model files, chat template and the length of the prompts.

    :raises PreflightError: whatever is wrong, as one sentence.
    """
    set_environment(environment)
    _check_version()
    from airflow_provider_raybatch.job.engine.vllm_args import engine_args

    args = engine_args(spec)
    _check_sampling(spec)
    tokenizer = _load_tokenizer(args)
    context = _context(args)
    _check_chat(spec, tokenizer, requests)
    encoded = ChatEncoder(tokenizer, spec.model.chat_template, spec.model.chat_template_kwargs).encode(
        requests
    )
    lengths = [len(ids) for ids in encoded if not isinstance(ids, RowFailure)]
    failed = [ids for ids in encoded if isinstance(ids, RowFailure)]
    if failed and not lengths:
        field = "chat_template" if failed[0].step == "template" else "prompt"
        raise PreflightError(
            f"{field}: none of the first {len(failed)} rows becomes tokens; the first fails: "
            f"{failed[0].reason}."
        )
    overlong = sum(length >= context for length in lengths) if context else 0
    if lengths and overlong == len(lengths):
        raise PreflightError(
            f"prompt: all of the first {len(lengths)} prompts are longer than the model's context of "
            f"{context} tokens (the longest has {max(lengths)}); shorten them, or raise max_model_len in "
            "engine_args if the model allows."
        )
    return Checked(
        sampled=len(lengths),
        overlong=overlong,
        longest=max(lengths, default=0),
        context=context,
        generation_defaults=_generation_defaults(args),
        digests=Digests(
            model=_model_digest(spec.model.name, str(args.get("revision") or "")),
            tokenizer=_digest(_tokenizer_state(tokenizer)),
            chat_template=_digest(
                str(spec.model.chat_template or getattr(tokenizer, "chat_template", "") or "")
            ),
            spec=spec.response_digest,
        ),
    )


def _check_version() -> None:
    try:
        import vllm
    except ImportError as error:
        raise PreflightError(
            f"engine: vLLM is not installed on the cluster's nodes ({error}); install vllm 0.26 to 0.29 "
            "there, use an image that has it, or try the DAG with engine='echo'; where GPU nodes are "
            "still to come, name their accelerator_type."
        ) from error
    version = str(vllm.__version__)
    found = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if found < _OLDEST_VLLM:
        raise PreflightError(f"engine: the cluster has vLLM {version}; 0.26 or newer is needed.")


def _check_sampling(spec: BatchInferenceSpec) -> None:
    from airflow_provider_raybatch.job.engine.vllm_args import sampling_params

    try:
        params = sampling_params(spec.sampling)
    except ValueError as error:
        raise PreflightError(f"sampling: vLLM refuses {spec.sampling!r}: {_one_line(error)}.") from error
    structured = getattr(params, "structured_outputs", None)
    if structured is None:
        return
    if structured.choice is not None and not structured.choice:
        raise PreflightError("sampling: structured_outputs has an empty list of choices; give at least one.")
    try:
        _compile_structured(params)
    except Exception as error:  # the grammar libraries raise classes of their own
        shown = json.dumps(spec.sampling["structured_outputs"], ensure_ascii=False, default=str)[:200]
        raise PreflightError(
            f"sampling: structured_outputs {shown} does not compile: {_one_line(error)}."
        ) from error


def _compile_structured(params: Any) -> None:
    """As vLLM's own `auto` backend does: xgrammar first, guidance for what xgrammar doesn't know."""
    from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    try:
        validate_xgrammar_grammar(params)
    except Exception:  # as in sampling_params(); where it helps, guidance has the last word
        validate_guidance_grammar(params, tokenizer=None)


def _load_tokenizer(args: dict[str, Any]) -> Any:
    from vllm.tokenizers import get_tokenizer

    try:
        return get_tokenizer(
            args.get("tokenizer") or args["model"],
            tokenizer_mode=args.get("tokenizer_mode", "auto"),
            trust_remote_code=bool(args.get("trust_remote_code", False)),
            revision=args.get("tokenizer_revision") or args.get("revision"),
        )
    except Exception as error:  # huggingface_hub, transformers and tokenizers each raise their own
        raise PreflightError(
            f"model: {args['model']!r} can't be loaded ({_one_line(error)}); check the name, that every "
            "node can read the folder or reach the hub, and hf_conn_id where the model is gated."
        ) from error


def _context(args: dict[str, Any]) -> int:
    if isinstance(args.get("max_model_len"), int) and args["max_model_len"] > 0:
        return int(args["max_model_len"])
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            args["model"],
            revision=args.get("revision"),
            trust_remote_code=bool(args.get("trust_remote_code", False)),
        )
    except Exception as error:  # see _load_tokenizer
        raise PreflightError(
            f"model: the config of {args['model']!r} can't be loaded ({_one_line(error)})."
        ) from error
    text = getattr(config, "text_config", config)
    return int(getattr(text, "max_position_embeddings", 0) or 0)


def _generation_defaults(args: dict[str, Any]) -> dict[str, Any]:
    """Sampling defaults of the model's `generation_config`, as ``LLM`` and vLLM's server apply them."""
    from transformers import GenerationConfig

    if args.get("generation_config") == "vllm":
        return {}
    try:
        config = GenerationConfig.from_pretrained(args["model"], revision=args.get("revision")).to_diff_dict()
    except OSError:
        return {}  # many models have none
    defaults = {name: config[name] for name in _GENERATION_NAMES if config.get(name) is not None}
    if config.get("max_new_tokens") is not None:
        defaults["max_tokens"] = config["max_new_tokens"]
    return defaults


def _check_chat(spec: BatchInferenceSpec, tokenizer: Any, requests: Sequence[Request]) -> None:
    chat = next((request for request in requests if request.messages is not None), None)
    if chat is None or spec.model.chat_template or getattr(tokenizer, "chat_template", None):
        return
    if type(tokenizer).__name__.startswith("Mistral"):
        return  # its chat format is code, not a template
    raise PreflightError(
        f"chat_template: the tokenizer of {spec.model.name!r} has none; give one with chat_template, or "
        "send raw prompts with prompt_column."
    )


def _tokenizer_state(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return str(backend.to_str()) if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)


def _model_digest(name: str, revision: str) -> str:
    """What tells one version of a model from another.

    Of a folder: the names and sizes of its files with their content, of large ones samples of it: weights
    that were trained further differ everywhere. Of a hub's model: the commit that its snapshot has in the
    local cache, else name and revision.
    """
    folder = Path(name)
    if folder.is_dir():
        state = hashlib.sha256()
        for path in sorted(file for file in folder.iterdir() if file.is_file()):
            state.update(f"{path.name}:{path.stat().st_size}\n".encode())
            for piece in _content(path):
                state.update(piece)
        return state.hexdigest()[:32]
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, "config.json", revision=revision or None)
    commit = Path(cached).parent.name if isinstance(cached, str) else revision
    return _digest(f"{name}@{commit}")


def _content(path: Path) -> Iterator[bytes]:
    """A file's content, of a large one samples from its beginning to its end."""
    size = path.stat().st_size
    if size <= _HASHED_WHOLE:
        yield path.read_bytes()
        return
    with path.open("rb") as stream:
        for number in range(_SAMPLES):
            stream.seek((size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
            yield stream.read(_SAMPLE_BYTES)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32] if text else ""


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (text or type(error).__name__)[:300].rstrip(".")
