# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM check the job's sampling or pooling before an engine starts, and what a model may be asked for.

Sampling of a row fails that row alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_models, vllm_compat_parsers
from airflow_provider_raybatch.job.engine.request_values import check_token_ids
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.preflight.check import Check
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel, LoadedModel
from airflow_provider_raybatch.job.row import Request

_COMPACTS = ("xgrammar", "guidance")
"""Backends that can write JSON without white space, in the order in which vLLM's `auto` tries them."""
_MOST_KINDS = 64
EMBEDS, CLASSIFIES, GENERATES = "makes embeddings", "classifies", "generates text"
CLASSIFIES_TOKENS = "classifies each token"
"""What a model does."""


@dataclass(frozen=True)
class CheckedSampling:
    """The sampling parameters of a job that generates, as vLLM made them."""

    params: Any


def check_sampling(spec: BatchInferenceSpec) -> Any:
    """Let vLLM make the job's parameters, and compile its structured outputs.

    :returns: vLLM's parameters.
    :raises PreflightError: it refuses them.
    """
    from airflow_provider_raybatch.job.engine.vllm_args import sampling_params, schema_name

    try:
        params = sampling_params({"max_tokens": None, **spec.sampling}, schema_name(spec))
    except ValueError as error:
        raise PreflightError(f"sampling: vLLM refuses {spec.sampling!r}: {short(error)}.") from error
    structured = getattr(params, "structured_outputs", None)
    if structured is None:
        return params
    try:
        vllm_compat_parsers.compile_structured(params, _grammar_backend(spec))
    except Exception as error:  # the grammar libraries raise classes of their own
        typed = spec.response_schema
        asked = spec.sampling["structured_outputs"] if typed is None else typed
        shown = json.dumps(asked, ensure_ascii=False, default=str)[:200]
        name = "sampling: structured_outputs" if typed is None else schema_name(spec)
        raise PreflightError(
            f"{name} {shown} does not compile: {short(error)}; write it without what this names."
        ) from error
    return params


def asked_by(spec: BatchInferenceSpec, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """The different `structured_outputs` of requests, or the first ones of many."""
    kinds: dict[str, dict[str, Any]] = {}
    for sampling in [{}, *(request.sampling for request in requests if request.sampling)]:
        asked = {**spec.sampling, **sampling}.get("structured_outputs")
        if isinstance(asked, Mapping) and asked and len(kinds) < _MOST_KINDS:
            kinds.setdefault(json.dumps(asked, sort_keys=True, default=str), dict(asked))
    return list(kinds.values())


def compact_json(spec: BatchInferenceSpec, requests: Sequence[Request], tokenizer: Any) -> dict[str, Any]:
    """The engine's `structured_outputs_config` for JSON without white space; else empty.

    Where a grammar allows white space between values, a weak model may write it until `max_tokens`. VLLM
    forbids it only under a named backend: the one that `auto` would take. Where no request has
    `structured_outputs`, the engine gets the same, so that jobs share a warm engine. What the user has set
    stays.

    :param requests: of the first rows.
    """
    given = spec.engine_args.get("structured_outputs_config") or {}
    if not isinstance(given, Mapping) or "disable_any_whitespace" in given:
        return {}
    compact = {**given, "disable_any_whitespace": True}
    if "backend" in given:
        return compact if given["backend"] in _COMPACTS else {}
    asked = asked_by(spec, requests)
    if any(one.get("disable_any_whitespace") is False or one.get("whitespace_pattern") for one in asked):
        return {}
    if not asked and spec.engine != "vllm":
        return {}
    taken = [found for one in asked if (found := _backends(one, tokenizer))]
    shared = set.intersection(*taken) if taken else set() if asked else set(_COMPACTS)
    backend = next((one for one in _COMPACTS if one in shared), None)
    return {} if backend is None else {**compact, "backend": backend}


def _backends(structured: Mapping[str, Any], tokenizer: Any) -> set[str]:
    from airflow_provider_raybatch.job.engine.vllm_args import sampling_params

    found = set()
    for backend in _COMPACTS:
        try:
            params = sampling_params({"structured_outputs": structured})
        except (ValueError, PreflightError):  # that row alone fails
            return set()
        constrains = params.structured_outputs is not None
        if constrains and vllm_compat_parsers.takes_structured(params, backend, tokenizer):
            found.add(backend)
    return found


def _grammar_backend(spec: BatchInferenceSpec) -> str:
    given = spec.engine_args.get("structured_outputs_config")
    return str(given.get("backend") or "auto") if isinstance(given, Mapping) else "auto"


def check_pooling(model: LoadedModel) -> None:
    """Check what a model's config tells; its files have told most before, and its engine tells the rest.

    :raises PreflightError: the model generates, or vLLM refuses `pooling` for it.
    """
    spec, config = model.spec, model.config
    if not spec.pools:
        return
    problem = wrong_task(spec.model_task, GENERATES) if vllm_compat.generates(config) else None
    if problem is not None:
        raise PreflightError(f"model: {spec.model!r} {problem}.")
    labels = vllm_compat_models.label_count(config)
    if spec.compares and labels not in (1, None):
        raise PreflightError(
            f"model: {spec.model!r} has {labels} labels, and model_task 'score' needs a cross-encoder "
            "(reranker), which has one; use model_task 'classify' with a template of both texts."
        )
    try:
        params = vllm_compat_models.pooling_params(spec.model_task, spec.pooling)
        vllm_compat_models.check_pooling_params(params, config)
    except Exception as error:  # its class differs between vLLM's versions
        raise PreflightError(f"pooling: vLLM refuses {spec.pooling!r}: {short(error)}.") from error


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


def _sampling(asked: AskedModel) -> CheckedSampling | None:
    return None if asked.spec.pools else CheckedSampling(check_sampling(asked.spec))


def _generation(model: LoadedModel, sampling: CheckedSampling) -> None:
    if not vllm_compat.generates(model.config):  # its files may not tell
        problem = wrong_task("generate", "is a pooling model")
        raise PreflightError(f"model: {model.spec.model!r} {problem}.")
    check_token_ids(sampling.params, model.tokenizer, model.vocabulary)


SAMPLING, GENERATION, POOLING = Check(_sampling), Check(_generation), Check(check_pooling)
