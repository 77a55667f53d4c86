# SPDX-License-Identifier: Apache-2.0
"""Whether a model can be asked at all, by a look at its files: in seconds, before vLLM is imported.

What can't be seen from here, or is not understood, is left to vLLM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.preflight.model_description import ModelDescription, describe
from airflow_provider_raybatch.job.preflight.model_files import files_of
from airflow_provider_raybatch.job.preflight.model_version import hub_token

_PLAIN_FORMATS = {"auto", "hf", "safetensors"}
"""Values of `load_format` with which vLLM loads the files that a model has on the hub."""
_SHOWN = 3


def refuse_missing(model: str) -> None:
    """Refuse a folder that is not here, which vLLM would take for a name on the hub.

    :raises PreflightError: nothing has this path.
    """
    if model.startswith("/") and not Path(model).exists():
        raise PreflightError(
            f"model: nothing is at {model!r} on the node that checks it; correct the path, or make the "
            "folder readable on every node."
        )


def refuse_by_files(spec: BatchInferenceSpec, environment: Mapping[str, SecretStr]) -> None:
    """Refuse a model by its files, where this node sees them.

    :param environment: the job's, with its token for the hub.
    :raises PreflightError: vLLM can't load the model, or it generates no text.
    """
    problem = None
    with contextlib.suppress(Exception):  # each store raises its own, and any file may be broken
        files = files_of(spec.model, spec.engine_args.get("revision"), hub_token(environment))
        problem = None if files is None else _problem(describe(files), spec)
    if problem:
        raise PreflightError(f"model: {spec.model!r} {problem}.")


def no_text(does: str) -> str:
    """Of a model that does something else."""
    return f"{does} and generates no text; choose a model that does, such as an instruct model"


def _problem(model: ModelDescription, spec: BatchInferenceSpec) -> str | None:
    args = spec.engine_args
    if model.adapted is not None:
        of = repr(model.adapted) if model.adapted else "another model"
        merge = "merge it into that model (PEFT's merge_and_unload), and give the merged one"
        return f"is an adapter (LoRA) for {of}; {merge}"
    if not model.has_config and "hf_config_path" not in args:
        if model.checkpoints:
            inside = _listed([repr(name) for name in model.checkpoints])
            return f"has no config.json, but {inside} inside of it have; name one of them"
        return "has no config.json; give a model in Hugging Face's format, all files of it"
    loads = str(args.get("load_format", "auto")) in _PLAIN_FORMATS and "model_weights" not in args
    pointers = [name for name in model.pointers if loads or name not in model.weights]
    if pointers:
        return (
            f"has pointers of Git LFS in place of {_listed(pointers)}; run 'git lfs pull' there, or "
            "download it with 'hf download'"
        )
    if loads and not model.weights:
        return (
            "has no weights (*.safetensors, *.bin or *.pt); copy or download it whole, or set load_format in "
            "engine_args where they have another format"
        )
    missing = sorted(set(model.shards) - set(model.weights))
    if loads and missing:
        return (
            f"lacks {len(missing)} of its {count_of(len(model.shards), 'file')} of weights (first "
            f"{missing[0]!r}); copy or download it whole"
        )
    if not model.has_tokenizer and "tokenizer" not in args:
        return (
            "has no tokenizer (tokenizer.json, tokenizer.model or vocab.json); save the tokenizer there, "
            "too, or name one by engine_args={'tokenizer': ...}"
        )
    if not model.tasks or "generate" in model.tasks or not {"runner", "hf_overrides"}.isdisjoint(args):
        return None
    does = "makes embeddings" if "embed" in model.tasks else "classifies"
    return no_text(f"({model.architectures[0]}) {does}" if model.architectures else does)


def _listed(names: Sequence[str]) -> str:
    if len(names) > _SHOWN:
        return f"{', '.join(names[:_SHOWN])} and {len(names) - _SHOWN} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
