# SPDX-License-Identifier: Apache-2.0
"""Counts the tokens of prompts as an engine would, without one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import overlong
from airflow_provider_raybatch.job.engine.echo import EchoEngine, words_of
from airflow_provider_raybatch.job.engine.echo_args import check_echo
from airflow_provider_raybatch.job.engine.request_values import whole_number
from airflow_provider_raybatch.job.media.allowed import ImageAccess
from airflow_provider_raybatch.job.media.load import load
from airflow_provider_raybatch.job.preflight.loaded_model import load_model
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.storage.errors import StorageError

_MOST_PROCESSED = 32
"""Rows of a task whose images are loaded, which may take a second each."""


@dataclass(frozen=True)
class PromptLength:
    """Tokens of one prompt.

    :param whole: before it is cut, of the longest request of its row; -1 if it makes no tokens.
    :param sent: that the engine gets for the row; -1 if the row fails.
    :param max_tokens: of its response; -1 if the context alone limits it.
    :param cut: that are cut off, of all requests of its row.
    :param images: how the tokens of its images were counted, which the other numbers have: ``processor``,
        ``mean``, ``one`` (each counts as one) or ``none``; empty without images.
    """

    whole: int = -1
    sent: int = -1
    max_tokens: int = -1
    failure: RowFailure | None = None
    cut: int = 0
    images: str = ""


class EchoCounter:
    """Of the echo engine, where words count as tokens."""

    def __init__(self, spec: BatchInferenceSpec) -> None:
        quick = {"startup_seconds": 0.0, "startup_spread": 0.0, "request_log": None}
        self._engine = EchoEngine(spec.model_copy(update={"engine_args": {**spec.engine_args, **quick}}))
        self._sampling = spec.sampling
        self.context = check_echo(spec).max_model_len

    def count(self, requests: Sequence[Request]) -> list[PromptLength]:
        """A length for each request."""
        found = []
        for request, encoded in zip(requests, self._engine.encode(requests), strict=True):
            whole, most = len(words_of(request)), _most(self._sampling, request)
            if isinstance(encoded, RowFailure):
                found.append(PromptLength(whole, -1, most, encoded))
            else:
                several = [sum(map(len, pair)) for pair in encoded.pairs]
                longest = max(several) if len(several) > 1 else encoded.words + encoded.cut
                images = "one" if request.images else ""
                found.append(PromptLength(longest, encoded.words, most, cut=encoded.cut, images=images))
        return found


class VllmCounter:
    """Of vLLM: the model's chat template and tokenizer, and for some rows its processor of images.

    :param access: what images may be read; ``None`` counts none.
    :raises PreflightError: the model can't be loaded.
    """

    def __init__(self, spec: BatchInferenceSpec, access: ImageAccess | None = None) -> None:
        model = load_model(spec)
        self._encoder, self.context = model.encoder, model.context
        self._access = access
        self._images = self._tokens = self._processed = 0
        self._sampling = {**model.sampling_defaults, **spec.sampling}
        self._refused: dict[str, RowFailure | None] = {}

    def count(self, requests: Sequence[Request]) -> list[PromptLength]:
        """A length for each request."""
        found = []
        for request, ids in zip(requests, self._encoder.encode(requests), strict=True):
            most = _most(self._sampling, request)
            if isinstance(ids, RowFailure):
                found.append(PromptLength(-1, -1, most, ids))
                continue
            fitted = self._encoder.fitted(request, ids, self.context, None if most < 0 else most)
            failure = fitted if isinstance(fitted, RowFailure) else self._refusal(request)
            sent = -1 if isinstance(fitted, RowFailure) or failure else len(fitted)
            cut = len(ids) - sent if sent >= 0 else 0
            length = PromptLength(self._encoder.longest(ids), sent, most, failure, cut)
            if request.images:
                length = self._with_images(request, fitted if isinstance(fitted, list) else ids, length)
            found.append(length)
        return found

    def _with_images(self, request: Request, ids: list[int], length: PromptLength) -> PromptLength:
        """By the model's processor for the first rows; after them by the mean of their images."""
        made, how, count = self._processed_tokens(request, ids, length), "processor", len(request.images)
        if isinstance(made, RowFailure):
            return replace(length, sent=-1, failure=made)
        if made is None:
            made, how = round(count * self._tokens / (self._images or 1)), "mean" if self._images else "none"
        else:
            self._images, self._tokens = self._images + count, self._tokens + made
        whole, sent, failure = length.whole + made, length.sent + made, length.failure
        if how == "processor" and sent >= self.context:
            failure = overlong(sent, self.context)
        return replace(length, whole=whole, sent=-1 if failure else sent, failure=failure, images=how)

    def _processed_tokens(
        self, request: Request, ids: list[int], length: PromptLength
    ) -> RowFailure | int | None:
        """Tokens of its images, or why the row fails; ``None`` where the model's processor was not asked."""
        images = self._encoder.images
        if self._access is None or images is None or length.sent < 0 or self._processed >= _MOST_PROCESSED:
            return None
        self._processed += 1
        try:
            loaded = load(request.images, self._access)
            if isinstance(loaded, RowFailure):
                return loaded
            return images.tokens_with(ids, loaded.pixels) - len(ids)
        except StorageError:
            return None
        except Exception as error:  # vLLM's, or of a model's processor, as in the engine
            return RowFailure.of("media", error)

    def _refusal(self, request: Request) -> RowFailure | None:
        """Why vLLM refuses the row's own sampling parameters; ``None`` if it takes them."""
        if not request.sampling:
            return None
        kind = json.dumps(dict(request.sampling), sort_keys=True, default=str)
        if kind not in self._refused:
            self._refused[kind] = self._tried(request.sampling)
        return self._refused[kind]

    def _tried(self, sampling: Mapping[str, Any]) -> RowFailure | None:
        from airflow_provider_raybatch.job.engine.forced import whole
        from airflow_provider_raybatch.job.engine.vllm_args import sampling_params

        try:
            params = sampling_params({"max_tokens": None, **whole({**self._sampling, **sampling})})
            self._encoder.check_sampling(params)
        except (ValueError, RaybatchError) as error:
            return RowFailure.of("engine", error)
        return None


def _most(sampling: Mapping[str, Any], request: Request) -> int:
    most = whole_number({**sampling, **request.sampling}.get("max_tokens"))
    return most if isinstance(most, int) else -1
