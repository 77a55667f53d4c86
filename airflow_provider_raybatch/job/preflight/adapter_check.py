# SPDX-License-Identifier: Apache-2.0
"""Refuses an adapter (LoRA) by its files, before an engine starts: one that vLLM meets first may end it.

Sizes of its weights are compared with the model's config. What can't be seen from here is left to vLLM,
which loads each adapter before the first request.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.arguments.engine import is_on_hub, revision_of
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.step_specs import with_adapters
from airflow_provider_raybatch.contract.text import hex_digest, json_digest, version_parts
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_models
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.preflight.check import Check
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.preflight.model_files import ModelFiles, files_of, refuse_out_of_reach
from airflow_provider_raybatch.job.preflight.model_version import by_own_identity, content_of, hub_token
from airflow_provider_raybatch.storage.folder import folder

MOST_RANK = 512
"""Of vLLM's ranks, the largest."""
_NEEDED = ("r", "lora_alpha", "target_modules")
_PLAIN = {"peft_type": "LORA", "use_dora": False, "bias": "none", "modules_to_save": None}
"""What vLLM takes of these fields of a config."""
_HEADER_SIZE, _MOST_HEADER = 8, 64 * 1024 * 1024
_POINTER = b"version https://git-lfs"
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_OTHER_TOWERS = re.compile(r"vision|visual|audio|encoder")
_READS_HIDDEN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Modules of nearly all decoders that take hidden states."""
_WRITES_HIDDEN = ("o_proj", "down_proj")


@dataclass(frozen=True)
class CheckedAdapter:
    """An adapter as it was checked.

    :param digest: of its content.
    :param location: the one that was given, with the hub's commit where it has one.
    :param size: bytes of its weights; 0 if not known.
    :param base: the model that it was trained on, by its own config; empty if that does not say.
    """

    digest: str
    location: str
    rank: int
    size: int = 0
    base: str = ""


class CheckedAdapters(dict[str, CheckedAdapter]):
    """The adapters of a job, by name."""


class LoraArguments(dict[str, Any]):
    """Engine arguments for the adapters of a job."""


def check_adapters(asked: AskedModel) -> CheckedAdapters:
    """Check the adapters of a job, by name.

    :raises PreflightError: vLLM can't load one, or not with this model.
    """
    spec, token = asked.spec, hub_token(asked.environment)
    config = _config_of(spec, token) if spec.adapter_locations else {}
    return CheckedAdapters({
        name: _check(_field(spec, name), location, config, token)
        for name, location in spec.adapter_locations.items()
    })


def _field(spec: BatchInferenceSpec, name: str) -> str:
    for step in spec.steps or ():
        if step.adapter is not None and revision_of(step.adapter)[0] == name:
            return f"steps: {step.name}: adapter"
    return "adapter" if spec.adapter is not None else f"adapters: {name}"


def _config_of(spec: BatchInferenceSpec, token: str | None) -> Mapping[str, Any]:
    """The model's, or that of its text part; empty where it can't be read here."""
    with contextlib.suppress(Exception):  # each store raises its own
        files = files_of(spec.model, spec.engine_args.get("revision"), token)
        config = {} if files is None else files.json("config.json")
        text = config.get("text_config")
        return text if isinstance(text, Mapping) else config
    return {}


def _check(field: str, location: str, config: Mapping[str, Any], token: str | None) -> CheckedAdapter:
    name, revision = revision_of(location)
    if location.startswith("/") and not Path(location).is_dir():
        raise PreflightError(
            f"{field}: no folder is at {location!r} on the node that checks it; correct the path, or make "
            "the folder readable on every node."
        )
    refuse_out_of_reach(field, name, revision)
    try:
        files = files_of(name, revision, token)
    except Exception as error:  # of the library that asks
        where = "hf_conn_id where it is gated" if is_on_hub(location) else "the access of the cluster's nodes"
        why = by_own_identity(short(error))
        raise PreflightError(
            f"{field}: {location!r} can't be read ({why}); check the name, and {where}."
        ) from error
    if files is None:
        raise PreflightError(f"{field}: nothing is at {location!r}; correct the bucket or the prefix.")
    if problem := _problem(files, config):
        raise PreflightError(f"{field}: {location!r} {problem}.")
    own = files.json(CONFIG)
    weights = _weights_of(files)
    return CheckedAdapter(
        digest=adapter_digest(name, files.version),
        location=f"{name}@{files.version}" if files.version else location,
        rank=_rank(own),
        size=sum(files.sizes[one] or 0 for one in weights),
        base=str(own.get("base_model_name_or_path") or ""),
    )


def _weights_of(files: ModelFiles) -> list[str]:
    return [name for name in WEIGHTS if name in files.sizes][:1]


def _problem(files: ModelFiles, config: Mapping[str, Any]) -> str | None:
    own, weights = files.json(CONFIG), _weights_of(files)
    if CONFIG not in files.sizes:
        if "config.json" in files.sizes:
            return "is a whole model and no adapter; give it as model"
        return f"has no {CONFIG}; give the folder that PEFT's save_pretrained has written"
    if not isinstance(own, Mapping) or not own:
        return f"has an {CONFIG} that is not a JSON object; save the adapter again"
    if not weights:
        return f"has no weights ({' or '.join(WEIGHTS)}); copy or download it whole"
    if files.start(weights[0], len(_POINTER)) == _POINTER:
        return f"has a pointer of Git LFS in place of {weights[0]}; run 'git lfs pull' there"
    return _unsupported(own) or _misfit(dict(_shapes(files, weights[0])), own, config)


def _unsupported(own: Mapping[str, Any]) -> str | None:
    for name, plain in _PLAIN.items():
        if (value := own.get(name) or plain) != plain:
            return f"has {name} {value!r}, which vLLM does not take; merge it into its model"
    missing = next((name for name in _NEEDED if own.get(name) is None), None)
    if missing is not None:
        return f"has an {CONFIG} without {missing!r}; save the adapter again with PEFT"
    rank = _rank(own)
    if not 1 <= rank <= MOST_RANK:
        return f"has the rank {rank}, and vLLM takes 1 to {MOST_RANK}; train one of a lower rank"
    return None


def _rank(own: Mapping[str, Any]) -> int:
    """The largest of its modules'."""
    patterns = own.get("rank_pattern")
    ranks = [own.get("r"), *(patterns.values() if isinstance(patterns, Mapping) else ())]
    return max((one for one in ranks if isinstance(one, int)), default=0)


def _shapes(files: ModelFiles, weights: str) -> Iterator[tuple[str, list[int]]]:
    """The shape of each tensor, by the header of a ``.safetensors`` file; of other files nothing is known."""
    with contextlib.suppress(Exception):  # a broken file is vLLM's to refuse
        if not weights.endswith(".safetensors"):
            return
        size = int.from_bytes(files.start(weights, _HEADER_SIZE), "little")
        if size <= _MOST_HEADER:
            header = json.loads(files.start(weights, _HEADER_SIZE + size)[_HEADER_SIZE:])
            yield from ((name, one["shape"]) for name, one in header.items() if name != "__metadata__")


def _misfit(shapes: Mapping[str, list[int]], own: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Why its weights are for another model, or of another rank than its config has."""
    base = own.get("base_model_name_or_path")
    of = f" (its config names {base!r})" if base else ""
    layers, hidden = config.get("num_hidden_layers"), config.get("hidden_size")
    texts = [name for name in shapes if not _OTHER_TOWERS.search(name)]
    deepest = max((int(found[1]) for name in texts if (found := _LAYER.search(name))), default=-1)
    if isinstance(layers, int) and deepest >= layers:
        return (
            f"was trained on another model{of}: it has weights for layer {deepest + 1}, and the model has "
            f"{layers} layers"
        )
    widths = set(_widths(shapes))
    if isinstance(hidden, int) and widths and hidden not in widths:
        width = min(widths)
        return f"was trained on another model{of}: its weights are {width} wide, and the model's are {hidden}"
    ranks = [shape[0] for name, shape in shapes.items() if name.endswith("lora_A.weight") and shape]
    if ranks and max(ranks) > _rank(own):
        # vLLM scales by the config's rank: where both fit, answers would be wrong.
        return f"has weights of the rank {max(ranks)}, and its {CONFIG} says {_rank(own)}; save it again"
    return None


def _widths(shapes: Mapping[str, list[int]]) -> Iterable[int]:
    for name, shape in shapes.items():
        module, _, matrix = name.removesuffix(".weight").rpartition(".")
        if len(shape) == 2 and matrix == "lora_A" and module.endswith(_READS_HIDDEN):
            yield shape[1]
        if len(shape) == 2 and matrix == "lora_B" and module.endswith(_WRITES_HIDDEN):
            yield shape[0]


def as_located(spec: BatchInferenceSpec, adapters: Mapping[str, CheckedAdapter]) -> dict[str, Any]:
    """Fields of the spec that pin the adapters' versions."""
    locations = {name: adapters[name].location for name in spec.adapter_locations if name in adapters}
    if not locations:
        return {}
    digests = {name: adapters[name].digest for name in locations}
    if spec.steps:
        pinned = with_adapters(spec.steps, spec.adapter, locations)
        pinned["adapters"] = {name: locations.get(name, place) for name, place in spec.adapters.items()}
    elif spec.adapter is None:
        pinned = {"adapters": locations}
    else:
        pinned = {"adapter": next(iter(locations.values()))}
    return {**pinned, "adapter_digests": digests}


_MOST_AT_ONCE = 8
"""Adapters in a GPU's memory by default: each takes room for the largest rank in every layer."""
_MOST_KEPT_BYTES = 4 * 1024**3
"""Of adapters in an engine's main memory by default; others are read again from disk."""
_RIGHT_ON_CPU = (0, 33)
"""The vLLM that gives rows without an adapter none on CPUs. Earlier ones give them that of the last slot."""


def lora_arguments(asked: AskedModel, adapters: CheckedAdapters) -> LoraArguments:
    """The engine arguments for the adapters that are not given, in a process that has vLLM.

    :raises PreflightError: a given one is too small for the adapters.
    """
    if not adapters:
        return LoraArguments()
    given, vllm = asked.spec.engine_args, vllm_compat.installed_version()
    most, count = max(one.rank for one in adapters.values()), len(adapters)
    rank = given.get("max_lora_rank")
    if isinstance(rank, int) and rank < most:
        raise PreflightError(
            f"engine_args: max_lora_rank is {rank}, and an adapter has the rank {most}; leave it out."
        )
    needs_empty_slot = vllm_compat.is_on_cpu() and version_parts(vllm) < _RIGHT_ON_CPU
    at_once = count + 1 if needs_empty_slot else min(count, _MOST_AT_ONCE)
    loras = given.get("max_loras", at_once)
    if needs_empty_slot and isinstance(loras, int) and loras < at_once:
        raise PreflightError(
            f"engine_args: max_loras is {loras}, and vLLM {vllm} on CPUs needs one more than there are "
            f"adapters ({at_once}), or it answers rows of the model alone with an adapter; leave it out."
        )
    largest = max(one.size for one in adapters.values())
    kept = min(count, _MOST_KEPT_BYTES // largest if largest else count)
    derived = {
        "enable_lora": True,
        "max_lora_rank": next((one for one in sorted(vllm_compat_models.lora_ranks()) if one >= most), most),
        "max_loras": at_once,
        "max_cpu_loras": max(kept, loras if isinstance(loras, int) else at_once),
    }
    return LoraArguments({name: value for name, value in derived.items() if name not in given})


def notes_of(spec: BatchInferenceSpec, adapters: Mapping[str, CheckedAdapter]) -> Iterator[str]:
    """What may be wrong with adapters, one sentence each: names of models differ for many good reasons."""
    model = _plain(spec.model)
    for name, adapter in adapters.items():
        if adapter.base and _plain(adapter.base) != model:
            yield (
                f"{_field(spec, name)}: its config names the model {adapter.base!r}, and the job's is "
                f"{spec.model!r}; responses are wrong unless one is a copy of the other."
            )


def _plain(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2].lower()


CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
"""In the order in which vLLM looks for them."""


def adapter_digest(location: str, commit: str) -> str:
    """32 hex digits over an adapter: of a folder by content, in S3 by sizes and entity tags.

    :param commit: the hub's, which stands for its content there.
    """
    if commit:
        return hex_digest(f"{location}@{commit}")
    if location.lower().startswith("s3://"):
        entries = folder(location).list(depth=1)
        return json_digest([(one.path, one.size, one.version) for one in entries if _counts(one.path)])
    state = hashlib.sha256()
    for path in sorted(file for file in Path(location).iterdir() if _counts(file.name)):
        state.update(f"{path.name}:{path.stat().st_size}\n".encode())
        for piece in content_of(path):
            state.update(piece)
    return state.hexdigest()[:32]


def _counts(name: str) -> bool:
    return name == CONFIG or name in WEIGHTS


ADAPTERS, LORA = Check(check_adapters), Check(lora_arguments)
