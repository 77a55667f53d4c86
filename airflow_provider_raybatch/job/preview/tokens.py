# SPDX-License-Identifier: Apache-2.0
"""Renders rows and counts their tokens as a replica would, in a task beside the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import ray

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine.base import overlong
from airflow_provider_raybatch.job.engine.echo import EchoEngine, words_of
from airflow_provider_raybatch.job.engine.echo_args import check_echo
from airflow_provider_raybatch.job.engine.request_values import whole_number
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.media.allowed import ImageAccess, image_access
from airflow_provider_raybatch.job.media.load import load
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.preflight.engine_check import beside_the_model
from airflow_provider_raybatch.job.preflight.model_check import prompt_encoder
from airflow_provider_raybatch.job.preview.picked import MOST_COUNTED, shares
from airflow_provider_raybatch.job.preview.refusals import Refusals
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow, RequestBuilder, read_columns
from airflow_provider_raybatch.job.row import NOT_ASKED, Request, RowFailure
from airflow_provider_raybatch.job.run.cpu_tasks import on_this_node, users_code
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.errors import StorageError

_MOST_KINDS = 1024
_MOST_TASKS = 64
_IMAGES = {
    "processor": "the model's processor counted the tokens of the images of {}",
    "mean": "those of {} more count with the mean of these",
    "none": "the tokens of the images of {} are not counted",
    "one": "each counts as one token, as the echo engine has it",
}
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


class Counter(Protocol):
    """Counts tokens of prompts without an engine."""

    context: int

    def count(self, requests: Sequence[Request]) -> list[PromptLength]:
        """A length for each request."""


class EchoCounter:
    """Of the echo engine, where words count as tokens."""

    def __init__(self, spec: BatchInferenceSpec) -> None:
        quick = {"startup_seconds": 0.0, "startup_spread": 0.0, "request_log": None}
        self._engine = EchoEngine(spec.model_copy(update={"engine_args": {**spec.engine_args, **quick}}))
        self._sampling = spec.sampling
        self.context = check_echo(spec).max_model_len

    def count(self, requests: Sequence[Request]) -> list[PromptLength]:
        """See :class:`Counter`."""
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
        self._encoder, self.context, defaults = prompt_encoder(spec)
        self._access = access
        self._images = self._tokens = self._processed = 0
        self._sampling = {**defaults, **spec.sampling}
        self._refused: dict[str, RowFailure | None] = {}

    def count(self, requests: Sequence[Request]) -> list[PromptLength]:
        """See :class:`Counter`."""
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
            if len(self._refused) >= _MOST_KINDS:
                self._refused.clear()
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


@dataclass(frozen=True)
class Question:
    """Which rows are to be rendered, and counted if `counts`. Picklable.

    :param picked: chunks, with the positions of the rows in each.
    :param keeps: whether the rows themselves are wanted, and not only their lengths.
    """

    job: Job
    picked: Sequence[tuple[Chunk, Sequence[int]]]
    counts: bool = True
    keeps: bool = False


@dataclass(frozen=True)
class Counted:
    """The answer.

    :param ordinals: of the rows.
    :param skipped: rows that `on_blank`, or the first of several steps, leaves out; only the others are
        counted.
    :param prepared: the rows, if they are wanted.
    :param lengths: of each row; none if nothing was counted.
    :param problem: why not.
    """

    ordinals: list[int] = field(default_factory=list)
    skipped: dict[int, PreparedRow] = field(default_factory=dict)
    prepared: list[PreparedRow] = field(default_factory=list)
    lengths: list[PromptLength] = field(default_factory=list)
    context: int = 0
    problem: str = ""

    def note_images(self, refusals: Refusals) -> None:
        """Note how images were counted, if rows have any."""
        counted_by = [one.images for one in self.lengths]
        told = [text.format(count_of(counted_by.count(how), "row")) for how, text in _IMAGES.items()
                if how in counted_by]  # fmt: skip
        if told:
            refusals.note(f"images: {'; '.join(told)}")


def ask(question: Question) -> Counted:
    """Render and count in tasks: on nodes with the model, and users' code apart from this process."""
    spec = question.job.spec
    free = int(ray.available_resources().get("CPU", 1))
    pieces = shares(list(question.picked), min(_MOST_TASKS, max(1, free)), MOST_COUNTED)
    places = _places(spec)
    references = [
        ray.remote(counted).options(**places[number % len(places)]).remote(replace(question, picked=piece))
        for number, piece in enumerate(pieces)
    ]
    try:
        return together(ray.get(references))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RaybatchError):
            raise error.cause from None
        raise
    except ray.exceptions.WorkerCrashedError as error:
        code = users_code(prompt_function=spec.prompt_function)
        raise RaybatchError(
            f"{code or 'source'}: the process that renders the rows ended each time; let a function raise "
            "an exception instead, and see that the node has memory for the longest rows."
        ) from error


def _places(spec: BatchInferenceSpec) -> list[dict[str, Any]]:
    """Ray's options for tasks that need what the engine needs: of each node in turn that has it."""
    if spec.engine == "echo":
        return [{"num_cpus": 0, "scheduling_strategy": "SPREAD"}]
    nodes = cluster_view.gpu_nodes(spec.accelerator_type)
    return [beside_the_model(node) for node in nodes] or [on_this_node()]


def together(parts: Sequence[Counted]) -> Counted:
    """The answers of several tasks, in the order of their rows."""
    return Counted(
        ordinals=[one for part in parts for one in part.ordinals],
        skipped={ordinal: row for part in parts for ordinal, row in part.skipped.items()},
        prepared=[one for part in parts for one in part.prepared],
        lengths=[one for part in parts for one in part.lengths],
        context=max((part.context for part in parts), default=0),
        problem=next((part.problem for part in parts if part.problem), ""),
    )


def counted(question: Question) -> Counted:
    """See :func:`ask`; in this process."""
    job, problem = question.job, ""
    set_environment(job.environment)
    counter: Counter | None = None
    if question.counts:
        try:
            access = image_access(job.spec, job.listing, job.credentials)
            counter = EchoCounter(job.spec) if job.spec.engine == "echo" else VllmCounter(job.spec, access)
        except RaybatchError as error:
            problem = str(error)
    ordinals, skipped = list[int](), dict[int, PreparedRow]()
    prepared, lengths = list[PreparedRow](), list[PromptLength]()
    for some, rows in _rows(question, skipped):
        ordinals += some
        if question.keeps:
            prepared += rows
        if counter is not None:
            lengths += _lengths(counter, rows)
    return Counted(ordinals, skipped, prepared, lengths, 0 if counter is None else counter.context, problem)


def _rows(
    question: Question, skipped: dict[int, PreparedRow]
) -> Iterator[tuple[list[int], list[PreparedRow]]]:
    """The rows that are asked, by chunks, with their ordinals.

    :param skipped: gets the others.
    """
    job, which = question.job, question.job.spec.question
    earlier = dict.fromkeys(which.earlier_columns, "?")
    # Of conditions, those that answers do not decide.
    step = which.step.model_copy(update={"when": [one for one in which.step.when if one[0] not in earlier]})
    columns = read_columns(job.spec)
    if earlier and columns is not None:
        columns = [one for one in columns if one not in earlier]
    reader = Reader(job.listing, columns, job.credentials, whole=False, texts=job.spec.text_columns())
    builder = RequestBuilder(job.spec, job.task.renderer(), job.keyer)
    for chunk, positions in question.picked:
        rows = reader.rows(chunk, reader.content(chunk), positions).rows
        asked = {}
        for position, row in zip(positions, rows, strict=True):
            row = {**row, **earlier} if isinstance(row, dict) else row
            if isinstance(row, dict) and not step.is_asked(row):
                skipped[chunk.ordinal + position] = builder.skipped(row)
            else:
                asked[chunk.ordinal + position] = row
        made = dict(zip(asked, builder.ask(list(asked.values())), strict=True))
        skipped |= {ordinal: one for ordinal, one in made.items() if one.request is NOT_ASKED}
        made = {ordinal: one for ordinal, one in made.items() if one.request is not NOT_ASKED}
        yield list(made), list(made.values())


def _lengths(counter: Counter, prepared: Sequence[PreparedRow]) -> list[PromptLength]:
    requests = [row.request for row in prepared if isinstance(row.request, Request)]
    made = iter(counter.count(requests))
    return [
        next(made) if isinstance(row.request, Request) else PromptLength(failure=row.request)
        for row in prepared
    ]
