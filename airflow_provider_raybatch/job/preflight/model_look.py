# SPDX-License-Identifier: Apache-2.0
"""Refuses a model by the names of its files and its ``config.json``: in seconds, before vLLM is imported.

What can't be seen from here, or is not understood, is left to vLLM.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of, nearest
from airflow_provider_raybatch.job.preflight.model_files import ModelFiles, files_of, refuse_out_of_reach
from airflow_provider_raybatch.job.preflight.model_version import hub_token

_PLAIN_FORMATS = {"auto", "hf", "safetensors"}
"""Values of `load_format` with which vLLM loads the files that a model has on the hub."""
_WEIGHTS = ("consolidated*.safetensors", "*.safetensors", "*.bin", "*.pt")
"""In the order in which vLLM looks for them; it loads those of the first kind that is there."""
_NO_WEIGHTS = ("adapter_model*", "training_args.bin", "optimizer*", "scheduler*", "scaler.pt", "rng_state*")
_TOKENIZERS = (
    "tokenizer*.json",
    "*.model*",
    "*.spm",
    "*vocab*",
    "tekken.json",
    "*.tiktoken",
    "tokenization_*",
)
_TOKENIZER_CONFIG, _CONFIG, _ADAPTER = "tokenizer_config.json", "config.json", "adapter_config.json"
_OF_BYTES = {"ByT5Tokenizer", "CanineTokenizer", "MyT5Tokenizer", "PerceiverTokenizer"}
"""Tokenizers that need no vocabulary."""
_POINTER, _LONGEST_POINTER = b"version https://git-lfs", 1024
_SHOWN = 3

_GENERATING = re.compile(r"\w+(ForCausalLM|ForConditionalGeneration|LMHeadModel)")
_CLASSIFYING = re.compile(r"\w+(ForSequenceClassification|Rewarding)")
_CLASSIFYING_TOKENS = re.compile(r"\w+(ForTokenClassification|RewardModel)")
_EMBEDDING = re.compile(
    r"\w+(ForMaskedLM|ForTextEncoding|EncoderModel|EmbeddingModel|BidirectionalModel)"
    r"|(\w*(B[Ee][Rr][Tt]a?|MPNet|Electra|CLIP|Siglip)|Gte(New)?|Llama|Mistral|Qwen[23]|Gemma[23](Text)?)Model"
)
_POOLING = "sentence_transformers.models.Pooling"
EMBEDS, CLASSIFIES, GENERATES = "makes embeddings", "classifies", "generates text"
_CLASSIFIES_TOKENS = "classifies each token"
"""What a model does."""


def refuse_missing(spec: BatchInferenceSpec) -> None:
    """Refuse a folder that is not here, which vLLM would take for a name on the hub, and a hub out of reach.

    :raises PreflightError: nothing has this path.
    :raises StorageError: the hub of model or tokenizer does not answer, and the cache lacks the files.
    """
    model, args = spec.model, spec.engine_args
    path = Path(model)
    if model.startswith("/") and not path.exists():
        near = None
        with contextlib.suppress(OSError):
            near = nearest(path.name, (one.name for one in path.parent.iterdir()))
        meant = f"did you mean {near!r}? Else make it" if near else "correct the path, or make the folder"
        raise PreflightError(
            f"model: nothing is at {model!r} on the node that checks it; {meant} readable on every node."
        )
    refuse_out_of_reach("model", model, args.get("revision"))
    revision = args.get("tokenizer_revision") or args.get("revision")
    refuse_out_of_reach("engine_args: tokenizer", str(args.get("tokenizer") or model), revision)


def refuse_by_files(spec: BatchInferenceSpec, environment: Mapping[str, SecretStr]) -> ModelFiles | None:
    """Refuse a model by its files, where this node sees them.

    :param environment: the job's, with its token for the hub.
    :returns: the files; ``None`` where they are not seen.
    :raises PreflightError: vLLM can't load the model, or it can't do what `model_task` asks.
    """
    files = problem = None
    with contextlib.suppress(Exception):  # each store raises its own, and any file may be broken
        files = files_of(spec.model, spec.engine_args.get("revision"), hub_token(environment))
        problem = None if files is None else _problem(files, spec.engine_args, spec.model_task)
    if problem:
        raise PreflightError(f"model: {spec.model!r} {problem}.")
    return files


def wrong_task(model_task: str, does: str, architecture: str = "") -> str | None:
    """Why a model can't do a kind of task, as a clause after its name; ``None`` if it can.

    :param does: what the model does; empty if that is not known.
    """
    served_by, lacks = _NEEDS.get(model_task, _NEEDS["generate"])
    if not does or does == served_by:
        return None
    other = _OTHERWISE.get((model_task, does), "")
    return f"{f'({architecture}) ' if architecture else ''}{does} and {lacks}{other}"


_NEEDS = {
    "generate": (GENERATES, "generates no text; choose a model that does, such as an instruct model"),
    "embed": (
        EMBEDS,
        "makes no embeddings; model_task 'embed' needs an embedding model, such as one of "
        "sentence-transformers",
    ),
    "classify": (
        CLASSIFIES,
        "has no head that classifies a text; model_task 'classify' needs a model with one, such as a "
        "...ForSequenceClassification",
    ),
    "score": (
        CLASSIFIES,
        "scores no pairs; model_task 'score' needs a cross-encoder (reranker), a "
        "...ForSequenceClassification with one label",
    ),
}
"""By the kind of task, what models do that can do it, and what others lack."""
_OTHERWISE = {
    ("embed", GENERATES): (
        ", or engine_args={'runner': 'pooling', 'convert': 'embed'} for this one's last token"
    ),
    ("score", EMBEDS): (
        "; of this one, take vectors with model_task 'embed', and compare them by their cosine"
    ),
}
"""By the kind of task and what the model does, what else it can be used for."""


def _problem(files: ModelFiles, args: Mapping[str, Any], model_task: str) -> str | None:
    names = files.sizes
    weights = weights_of(names)
    if not weights and _ADAPTER in names:
        base = _mapping(files, _ADAPTER).get("base_model_name_or_path")
        what = repr(str(base)) if base else "another model"
        return f"is an adapter (LoRA) for {what}; give that one as model, and this as adapter"
    if _CONFIG not in names and "params.json" not in names and "hf_config_path" not in args:
        checkpoints = sorted(name[:-12] for name in names if re.fullmatch("[^/]+/config.json", name))
        if checkpoints:
            inside = _listed(list(map(repr, checkpoints)))
            return f"has no config.json, but {inside} inside of it have; name one of them"
        return "has no config.json; give a model in Hugging Face's format, all files of it"
    loads = str(args.get("load_format", "auto")) in _PLAIN_FORMATS and "model_weights" not in args
    vocabulary = [
        name for name in names if _matches(name, _TOKENIZERS) and not name.endswith(_TOKENIZER_CONFIG)
    ]
    needed = [*(weights if loads else ()), *(name for name in vocabulary if "/" not in name), _CONFIG]
    pointers = [name for name in needed if _is_pointer(files, name)]
    if pointers:
        return (
            f"has pointers of Git LFS in place of {_listed(pointers)}; run 'git lfs pull' there, or "
            "download it with 'hf download'"
        )
    if loads and (lack := _lack_of_weights(files, weights)):
        return lack
    if not vocabulary and "tokenizer" not in args and _needs_vocabulary(_mapping(files, _TOKENIZER_CONFIG)):
        return (
            "has no tokenizer (tokenizer.json, tokenizer.model or vocab.json); save the tokenizer there, "
            "too, or name one by engine_args={'tokenizer': ...}"
        )
    if {"runner", "convert", "hf_overrides"} & set(args):
        return None
    architecture, does = _kind(files)
    return wrong_task(model_task, does, architecture)


def weights_of(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the model itself, or if it has none, those in folders, which few models have."""
    found = sorted(name for name in names if not _matches(name, _NO_WEIGHTS))
    for kind in _WEIGHTS:
        of_kind = tuple(name for name in found if "/" not in name and fnmatchcase(name, kind))
        if of_kind:
            return of_kind
    return tuple(name for name in found if _matches(name, _WEIGHTS))


def _lack_of_weights(files: ModelFiles, weights: Sequence[str]) -> str | None:
    if not weights:
        return (
            "has no weights (*.safetensors, *.bin or *.pt); copy or download it whole, or set load_format in "
            "engine_args where they have another format"
        )
    stem = "pytorch_model" if weights[0].endswith(".bin") else "model"
    stem = "consolidated" if weights[0].startswith("consolidated") else stem
    index = f"{stem}{Path(weights[0]).suffix}.index.json"
    if files.sizes.get(index) is None:  # nor on the hub: what is there is whole, and costs a download
        return None
    shards = set(_mapping(files, index).get("weight_map", {}).values())
    missing = sorted(shards - set(weights))
    if not missing:
        return None
    return (
        f"lacks {len(missing)} of its {count_of(len(shards), 'file')} of weights (first "
        f"{missing[0]!r}); copy or download it whole"
    )


def _is_pointer(files: ModelFiles, name: str) -> bool:
    size = files.sizes.get(name)
    return size is not None and size < _LONGEST_POINTER and files.read(name).startswith(_POINTER)


def _needs_vocabulary(config: Mapping[str, Any]) -> bool:
    return not config.get("auto_map") and config.get("tokenizer_class") not in _OF_BYTES


def _kind(files: ModelFiles) -> tuple[str, str]:
    """The architecture of a model, and what vLLM runs it for by default; empty if that is not known."""
    found = _mapping(files, _CONFIG).get("architectures")
    first = str(found[0]) if isinstance(found, list) and found else ""
    modules = files.json("modules.json")
    pools = any(isinstance(one, Mapping) and one.get("type") == _POOLING for one in modules)
    if pools or _EMBEDDING.fullmatch(first):
        return first, EMBEDS
    if _CLASSIFYING.fullmatch(first):
        return first, CLASSIFIES
    if _CLASSIFYING_TOKENS.fullmatch(first):
        return first, _CLASSIFIES_TOKENS
    return first, GENERATES if _GENERATING.fullmatch(first) else ""


def _mapping(files: ModelFiles, name: str) -> Mapping[str, Any]:
    found = files.json(name)
    return found if isinstance(found, Mapping) else {}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    base = name.rpartition("/")[2]
    return any(fnmatchcase(base, one) for one in patterns)


def _listed(names: Sequence[str]) -> str:
    if len(names) > _SHOWN:
        return f"{', '.join(names[:_SHOWN])} and {len(names) - _SHOWN} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
