# SPDX-License-Identifier: Apache-2.0
"""Numbers of a run, at its end and on the way, and of the run before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard, get_args

from pydantic import Field, model_validator

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.failures import FailureClass

EarlyEnd = Literal["expired", "cancelled", "limit_reached"]
"""How a batch ends in which not each line has an answer; also the step of such a line's row."""


class StepCounts(ContractModel):
    """Rows and tokens of one of `steps`. `asked` = `ok` + `rejected` + `errors`.

    Rows that failed in an earlier step are in none of the counts.

    :param asked: rows that the step asked about, whoever paid for the responses.
    :param skipped: rows whose conditions (`when`) did not hold, or with only blank text (`on_blank`
        ``null``); their columns of the step are null.
    :param ok: asked rows with a response as asked for.
    :param rejected: asked rows that continued with another response (`on_rejected`).
    :param errors: asked rows that failed here.
    :param input_tokens: of all asked rows with known responses; `cached_tokens` of them from the prefix
        cache.
    :param output_tokens: generated tokens of the same rows.
    :param resumed: responses of `ok` and `rejected` that an earlier submission generated.
    :param reused: responses of `ok` and `rejected` from the response store.
    :param duplicates: rows of `ok` and `rejected` with the response of an equal request.
    :param tokens_saved: input and output tokens that the run did not pay for, as in the manifest.
    """

    name: str
    asked: int = Field(default=0, ge=0)
    skipped: int = Field(default=0, ge=0)
    ok: int = Field(default=0, ge=0)
    rejected: int = Field(default=0, ge=0)
    errors: int = Field(default=0, ge=0)
    input_tokens: int = Field(default=0, ge=0)
    cached_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    resumed: int = Field(default=0, ge=0)
    reused: int = Field(default=0, ge=0)
    duplicates: int = Field(default=0, ge=0)
    tokens_saved: int = Field(default=0, ge=0)


class Counts(ContractModel):
    """Rows. `input` = `ok` + `error`.

    :param resumed: ok rows that an earlier submission generated.
    :param reused: ok rows from the response store.
    :param duplicates: ok rows with the answer of an equal request of this dataset.
    :param blank: rows that give the (first) prompt only blank text; of a user's function or a column of
        chats, rows that were left out for that.
    :param chunks: rows of the dataset, if `chunk_tokens` made several of a row; else the dataset has the ok
        rows.
    :param errors_by_step: failed rows by the step that failed: read, template, media, tokenize, engine,
        parse, length, postprocess; in a batch of the Batch API that ended early also cancelled, expired,
        limit_reached. With `steps`, after a step's name, such as ``draft.parse``.
    """

    input: int = Field(ge=0)
    ok: int = Field(ge=0)
    error: int = Field(ge=0)
    resumed: int = Field(default=0, ge=0)
    reused: int = Field(default=0, ge=0)
    duplicates: int = Field(default=0, ge=0)
    blank: int = Field(default=0, ge=0)
    chunks: int | None = Field(default=None, ge=0)
    errors_by_step: dict[str, int] = Field(default_factory=dict)

    @property
    def unanswered(self) -> int:
        """Of the failed rows, how many no model was asked for, since their batch had ended."""
        return sum(self.errors_by_step.get(step, 0) for step in get_args(EarlyEnd))

    @property
    def dataset_rows(self) -> int:
        """Rows of the dataset."""
        return self.ok if self.chunks is None else self.chunks

    @model_validator(mode="after")
    def _reconcile(self) -> Counts:
        if self.input != self.ok + self.error:
            raise ValueError(f"input {self.input} is not ok {self.ok} plus error {self.error}")
        return self


class Tokens(ContractModel):
    """Tokens of the delivered rows, whoever paid for them; and of rows that failed in a later one of `steps`.

    :param cached: tokens of `input` from the prefix cache.
    :param output: generated tokens.
    :param reasoning: tokens of `output` before the answers; ``None`` without a reasoning parser.
    :param filled: tokens that the choices of `structured_outputs` forced, so they were filled in and not
        generated; not in `output`, and only of rows that were generated for this input.
    """

    input: int = Field(default=0, ge=0)
    cached: int = Field(default=0, ge=0)
    output: int = Field(default=0, ge=0)
    filled: int = Field(default=0, ge=0)
    reasoning: int | None = Field(default=None, ge=0)


class ReplicaStats(ContractModel):
    """What one replica did in this submission.

    :param startup_seconds: from its process's start until it could take a request.
    :param began_seconds: from the first request of all replicas to its own.
    :param ended_seconds: from the first request of all replicas to its last answer.
    :param cpu_seconds: CPU time of its own process, which tokenises and detokenises, without the engine's
        processes, since the engine was ready. If it is near `generation_seconds`, the GPU waits for this
        process.
    :param gpus: ids of its GPUs on its node, as Ray gives them; empty without a GPU or with several nodes.
    :param gpu_utilization: mean of the driver's reading, 0 to 100; ``None`` without an NVIDIA GPU. It says
        that kernels ran, not how well. Engines that share a GPU all have the GPU's.
    :param gpu_share: `num_gpus` below one; ``None`` with whole GPUs.
    """

    replica: str
    node: str = ""
    rows: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    startup_seconds: float = 0.0
    began_seconds: float = 0.0
    ended_seconds: float = 0.0
    cpu_seconds: float = 0.0
    gpus: list[str] = Field(default_factory=list)
    gpu_utilization: float | None = None
    gpu_share: float | None = None


class StageSeconds(ContractModel):
    """Seconds summed over all batches, so they exceed wall time where batches overlap.

    :param load_images: fetching and decoding images, summed over rows.
    :param wait_for_images: an engine had room for a row whose images were still loading.
    """

    read: float = 0.0
    render: float = 0.0
    tokenize: float = 0.0
    load_images: float = 0.0
    wait_for_images: float = 0.0
    generate: float = 0.0
    detokenize: float = 0.0
    write: float = 0.0


class Moment(ContractModel):
    """One point of the course of a job.

    :param seconds: since the job's start.
    :param rows: of the input that were done.
    :param tokens_per_second: generated, and prompt tokens of answered requests, since the point before.
    :param rows_in_flight: rows in engines.
    :param replicas: with a ready engine.
    """

    seconds: float
    rows: int = 0
    tokens_per_second: float = 0.0
    rows_in_flight: int = 0
    replicas: int = 0


class JobRecord(ContractModel):
    """A driver's note, renewed every half minute and at its end.

    :param run_token: of the run it worked for, as in the manifest.
    :param began: epoch seconds of the job's start; `at` of this note.
    :param total: rows of the input; ``None`` before it was read. `done` and `errors` are of the progress.
    :param gpu_seconds_by_type: GPUs times seconds that its replicas held, by Ray's accelerator type.
    :param gpu_hour_price: as in the job's spec, and `currency`.
    :param phases: seconds of its start-up, as in the manifest's timing.
    :param course: at most some hundreds of points; neighbours are merged as it grows.
    :param content: whether a report of it may show what rows hold.
    :param failure: one sentence, and its class; ``None`` while it runs, and where it was killed.
    """

    run_token: str
    submission_id: str
    began: float
    at: float
    total: int | None = None
    done: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    gpu_seconds_by_type: dict[str, float] = Field(default_factory=dict)
    gpu_hour_price: dict[str, float] = Field(default_factory=dict)
    currency: str | None = None
    phases: dict[str, float] = Field(default_factory=dict)
    course: list[Moment] = Field(default_factory=list)
    content: bool = True
    failure: str | None = None
    failure_class: FailureClass | None = None


_COUNTS = (
    "rows",
    "errors",
    "tokens_paid",
    "resumed",
    "reused",
    "duplicates",
    "input_tokens",
    "output_tokens",
)
_AMOUNTS = ("seconds", "output_tokens_per_second", "gpu_seconds", "cost")
_MOST = 1e15
_CURRENCY = re.compile("[A-Z]{3}")


class LastRun(ContractModel):
    """What a task's last dataset was like: numbers alone; ``None`` where it is not known.

    :param rows: good rows, and `errors` failed ones.
    :param input_tokens: of the delivered rows; so are `output_tokens`.
    :param tokens_paid: as in the manifest; so are `gpu_seconds`, `cost` and `currency`.
    :param columns: name and Arrow type; ``None`` if only the numbers are known.
    :param created_at: ISO 8601, in UTC.
    """

    rows: int
    errors: int
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens_paid: int | None = None
    output_tokens_per_second: float | None = None
    gpu_seconds: float | None = None
    cost: float | None = None
    currency: str | None = None
    resumed: int | None = None
    reused: int | None = None
    duplicates: int | None = None
    finish_reasons: dict[str, int] = Field(default_factory=dict)
    errors_by_step: dict[str, int] = Field(default_factory=dict)
    columns: dict[str, str] | None = None
    created_at: str | None = None


def numbers_in(result: Any) -> dict[str, Any]:
    """The numbers in a task's return value, by fields of :class:`LastRun`; what is not a number is left out.

    Whoever may edit XComs may put anything there, so no text of it counts but a currency.
    """
    given = dict(result) if isinstance(result, Mapping) else {}
    tokens = given.get("tokens")
    if isinstance(tokens, Mapping):
        given |= {"input_tokens": tokens.get("input"), "output_tokens": tokens.get("output")}
    found = {name: given[name] for name in _COUNTS if is_count(given.get(name))}
    found |= {name: given[name] for name in _AMOUNTS if is_amount(given.get(name))}
    currency = given.get("currency")
    if isinstance(currency, str) and _CURRENCY.fullmatch(currency):
        found["currency"] = currency
    return found


def is_count(value: object) -> TypeGuard[int]:
    """Whether `value` is a number of things, which a database holds."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_amount(value: object) -> TypeGuard[float]:
    """Whether `value` is an amount of something: finite, not negative, and of a bearable size."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST
