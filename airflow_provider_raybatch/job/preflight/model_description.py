# SPDX-License-Identifier: Apache-2.0
"""What a model is and can do, by the names of its files and its ``config.json``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.job.preflight.model_files import ModelFiles

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
_TOKENIZER_CONFIG, _CONFIG = "tokenizer_config.json", ("config.json",)
_OF_BYTES = {"ByT5Tokenizer", "CanineTokenizer", "MyT5Tokenizer", "PerceiverTokenizer"}
"""Tokenizers that need no vocabulary."""
_POINTER, _LONGEST_POINTER = b"version https://git-lfs", 1024

_GENERATES = re.compile(r"\w+(ForCausalLM|ForConditionalGeneration|LMHeadModel|ChatModel)")
_CLASSIFIES = re.compile(r"\w+(For(Sequence|Token)Classification|Reward(Model|ing)|ForProcessRewardModel)")
_EMBEDS = re.compile(
    r"\w+(ForMaskedLM|ForTextEncoding|EncoderModel|EmbeddingModel|BidirectionalModel)"
    r"|(\w*(B[Ee][Rr][Tt]a?|MPNet|Electra|CLIP|Siglip)|Gte(New)?|Llama|Mistral|Qwen[23]|Gemma[23](Text)?)Model"
)
_POOLING = "sentence_transformers.models.Pooling"


@dataclass(frozen=True)
class ModelDescription:
    """What a model's files show.

    :param architectures: the classes in its config.
    :param tasks: what vLLM runs it for unless it is told otherwise: ``generate``, ``embed`` or ``classify``;
        empty where the names don't tell.
    :param has_config: whether it is a model rather than a part of one.
    :param checkpoints: folders in it that have a config of their own.
    :param adapted: of a LoRA adapter, the name of its model, which may be empty; ``None`` if it is none.
    :param weights: the files of weights that vLLM would load.
    :param shards: all files of weights that its index names; empty without an index.
    :param has_tokenizer: whether it has a vocabulary, or needs none.
    :param pointers: which of config, weights and the tokenizer's own files are pointers of Git LFS.
    """

    architectures: tuple[str, ...] = ()
    tasks: frozenset[str] = frozenset()
    has_config: bool = True
    checkpoints: tuple[str, ...] = ()
    adapted: str | None = None
    weights: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    has_tokenizer: bool = True
    pointers: tuple[str, ...] = ()


def describe(files: ModelFiles) -> ModelDescription:
    """Describe a model.

    :raises Exception: a file can't be read.
    """
    names = files.sizes
    weights = _weights(names)
    tokenizer = [name for name in names if _matches(name, _TOKENIZERS)]
    of_tokenizer = [name for name in tokenizer if not name.endswith(_TOKENIZER_CONFIG)]
    loaded = [*weights, *(name for name in of_tokenizer if "/" not in name), *_CONFIG]
    pointers = tuple(name for name in loaded if _is_pointer(files, name))
    architectures = _architectures(_mapping(files, "config.json"))
    return ModelDescription(
        architectures=architectures,
        tasks=_tasks(architectures, files),
        has_config="config.json" in names or "params.json" in names,
        checkpoints=tuple(sorted(name[:-12] for name in names if re.fullmatch("[^/]+/config.json", name))),
        adapted=None if weights or "adapter_config.json" not in names else _adapted(files),
        weights=weights,
        shards=_shards(files, weights),
        has_tokenizer=bool(of_tokenizer) or _needs_no_vocabulary(_mapping(files, _TOKENIZER_CONFIG)),
        pointers=pointers,
    )


def _weights(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the model itself, or if it has none, those in folders, which few models have."""
    found = sorted(name for name in names if not _matches(name, _NO_WEIGHTS))
    for kind in _WEIGHTS:
        of_kind = tuple(name for name in found if "/" not in name and fnmatchcase(name, kind))
        if of_kind:
            return of_kind
    return tuple(name for name in found if _matches(name, _WEIGHTS))


def _shards(files: ModelFiles, weights: tuple[str, ...]) -> tuple[str, ...]:
    """Not on the hub: what is uploaded there is whole, and a download for this is not worth it."""
    first = weights[0] if weights else ""
    stem = "pytorch_model" if first.endswith(".bin") else "model"
    stem = "consolidated" if first.startswith("consolidated") else stem
    index = f"{stem}{Path(first).suffix}.index.json"
    if files.sizes.get(index) is None:
        return ()
    return tuple(sorted(set(_mapping(files, index).get("weight_map", {}).values())))


def _is_pointer(files: ModelFiles, name: str) -> bool:
    size = files.sizes.get(name)
    return size is not None and size < _LONGEST_POINTER and files.read(name).startswith(_POINTER)


def _needs_no_vocabulary(config: Mapping[str, Any]) -> bool:
    return bool(config.get("auto_map")) or config.get("tokenizer_class") in _OF_BYTES


def _adapted(files: ModelFiles) -> str:
    return str(_mapping(files, "adapter_config.json").get("base_model_name_or_path") or "")


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    found = config.get("architectures")
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _tasks(architectures: tuple[str, ...], files: ModelFiles) -> frozenset[str]:
    if any(isinstance(one, Mapping) and one.get("type") == _POOLING for one in files.json("modules.json")):
        return frozenset({"embed"})  # whatever its architecture
    kinds = {"generate": _GENERATES, "classify": _CLASSIFIES, "embed": _EMBEDS}
    first = architectures[0] if architectures else ""
    return frozenset(task for task, names in kinds.items() if names.fullmatch(first))


def _mapping(files: ModelFiles, name: str) -> Mapping[str, Any]:
    found = files.json(name)
    return found if isinstance(found, Mapping) else {}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    base = name.rpartition("/")[2]
    return any(fnmatchcase(base, one) for one in patterns)
