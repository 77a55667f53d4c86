# SPDX-License-Identifier: Apache-2.0
"""A model's files, wherever vLLM would find them, and what they refuse in seconds, before vLLM is imported.

What can't be seen from here, or is not understood, is left to vLLM.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.text import count_of, nearest
from airflow_provider_raybatch.job.input.hub import PING, refuse_silent_hub
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.preflight.model_version import (
    TIMEOUT,
    hub_token,
    is_elsewhere,
    is_in_bucket,
    is_offline,
)
from airflow_provider_raybatch.job.preflight.sampling_check import (
    CLASSIFIES,
    CLASSIFIES_TOKENS,
    EMBEDS,
    GENERATES,
    wrong_task,
)
from airflow_provider_raybatch.storage.folder import folder

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


@dataclass(frozen=True)
class ModelFiles:
    """A model's files.

    :param sizes: bytes of each, by its path below the model; ``None`` on the hub, where files are whole.
    :param read: gives the content of one of them.
    :param read_start: gives so many bytes from the beginning of one; by default it reads all.
    :param version: the hub's commit; empty elsewhere.
    """

    sizes: Mapping[str, int | None]
    read: Callable[[str], bytes]
    read_start: Callable[[str, int], bytes] | None = None
    version: str = ""

    def start(self, name: str, length: int) -> bytes:
        """The first `length` bytes of a file, or all of a shorter one."""
        return self.read(name)[:length] if self.read_start is None else self.read_start(name, length)

    def json(self, name: str) -> Any:
        """A file's content; an empty ``dict`` where the file is missing or not JSON."""
        with contextlib.suppress(ValueError):
            return json.loads(self.read(name)) if name in self.sizes else {}
        return {}


def is_on_disk(model: str) -> bool:
    """Whether each node may see other files under this name."""
    with contextlib.suppress(ImportError):  # without the hub's client
        return model.startswith("/") or is_offline()
    return model.startswith("/")


def refuse_out_of_reach(field: str, model: str, revision: str | None) -> None:
    """Refuse a name on a hub that does not answer this node, unless its cache has the files.

    :raises StorageError: the hub has not answered for ten seconds.
    """
    if model.startswith("/") or is_in_bucket(model) or is_elsewhere(model):
        return
    with contextlib.suppress(ImportError):  # without the hub's client, another node reads the model
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        if is_offline():
            return
        repository = "/".join(model.partition(":")[0].split("/")[:2])  # also of repo:quant and repo/file.gguf
        with contextlib.suppress(Exception):  # the client raises its own
            snapshot_download(repository, revision=revision, local_files_only=True)
            return
        hub, remedy = constants.ENDPOINT, "copy it to S3, or fill their caches and set HF_HUB_OFFLINE=1"
        ask = partial(get_session().head, hub + PING, timeout=TIMEOUT)
        refuse_silent_hub(f"{field}: {model!r}", remedy, hub, ask)


def files_of(model: str, revision: str | None, token: str | None) -> ModelFiles | None:
    """The files that this node sees.

    :param token: see :func:`~airflow_provider_raybatch.job.preflight.model_version.hub_token`.
    :returns: ``None`` for a single file, and for what is neither a folder, nor on S3, nor a name on the hub.
    :raises Exception: of the library that asks.
    """
    if is_in_bucket(model):
        return _in_bucket(model) if model.lower().startswith("s3://") else None
    if model.startswith("/"):
        return _in_folder(Path(model)) if Path(model).is_dir() else None
    return None if is_elsewhere(model) else _on_hub(model, revision, token)


def _in_folder(path: Path, version: str = "") -> ModelFiles:
    """Of a folder and the folders in it, without broken links."""
    found = [one for pattern in ("*", "*/*") for one in path.glob(pattern) if one.is_file()]
    sizes = {one.relative_to(path).as_posix(): one.stat().st_size for one in found}
    return ModelFiles(sizes, lambda name: (path / name).read_bytes(), lambda *of: _start(path, *of), version)


def _start(folder: Path, name: str, length: int) -> bytes:
    with (folder / name).open("rb") as stream:
        return stream.read(length)


def _in_bucket(model: str) -> ModelFiles | None:
    place = folder(model)
    sizes = {entry.path: entry.size for entry in place.list()}
    return (
        ModelFiles(sizes, place.read, lambda name, size: place.read_range(name, 0, size)) if sizes else None
    )


def _on_hub(model: str, revision: str | None, token: str | None) -> ModelFiles:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    if is_offline():
        snapshot = Path(snapshot_download(model, revision=revision, local_files_only=True))
        return _in_folder(snapshot, snapshot.name)
    found = HfApi(token=token).model_info(model, revision=revision, timeout=TIMEOUT)

    def folder_of(name: str) -> Path:
        file = hf_hub_download(model, name, revision=found.sha, token=token, etag_timeout=TIMEOUT)
        return Path(file.removesuffix(name))

    return ModelFiles(
        {one.rfilename: None for one in found.siblings or ()},
        lambda name: (folder_of(name) / name).read_bytes(),
        lambda name, size: _start(folder_of(name), name, size),
        str(found.sha),
    )


def refuse_missing(asked: AskedModel) -> None:
    """Refuse a folder that is not here, which vLLM would take for a name on the hub, and a hub out of reach.

    :raises PreflightError: nothing has this path.
    :raises StorageError: the hub of model or tokenizer does not answer, and the cache lacks the files.
    """
    model, args = asked.spec.model, asked.spec.engine_args
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


def refuse_by_files(asked: AskedModel) -> ModelFiles | None:
    """Refuse a model by its files, where this node sees them.

    :returns: the files; ``None`` where they are not seen.
    :raises PreflightError: vLLM can't load the model, or it can't do what `model_task` asks.
    """
    spec = asked.spec
    files = problem = None
    with contextlib.suppress(Exception):  # each store raises its own, and any file may be broken
        files = files_of(spec.model, spec.engine_args.get("revision"), hub_token(asked.environment))
        problem = None if files is None else _problem(files, spec.engine_args, spec.model_task)
    if problem:
        raise PreflightError(f"model: {spec.model!r} {problem}.")
    return files


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
        return first, CLASSIFIES_TOKENS
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
