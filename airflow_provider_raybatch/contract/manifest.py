# SPDX-License-Identifier: Apache-2.0
"""What a job leaves behind: the description of one complete, immutable dataset, and the journal's entries."""

from __future__ import annotations

import datetime
from typing import Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field, field_validator

from airflow_provider_raybatch.contract.arguments.data import OutputFormat
from airflow_provider_raybatch.contract.base import ContractModel, parse_file
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.layout import journal_entry
from airflow_provider_raybatch.contract.run_numbers import (
    Counts,
    EarlyEnd,
    LastRun,
    ReplicaStats,
    StageSeconds,
    StepCounts,
    Tokens,
)
from airflow_provider_raybatch.contract.submission import TaskKey


class ManifestFile(ContractModel):
    """One published part. `path` is relative to the manifest's `uri`."""

    path: str
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)


class Column(ContractModel):
    """One column of the dataset; `type` as Arrow writes it, such as ``string`` or ``int64``."""

    name: str
    type: str


class Timing(ContractModel):
    """Wall seconds of this submission, and its rates over `generation_seconds`.

    :param preflight_seconds: until the destination was claimed, with the wait for nodes.
    :param startup_seconds: from the job's start to the first request in an engine.
    :param phases: seconds of each part of the start, in this order: `source` (destination, listing, rows,
        ids), `prompt` (first rows become requests), `nodes` (wait for them), `model` (its check), `earlier`
        (answers of earlier jobs and the response store), `claim`, `replica` (process start), `import` (of the
        engine's package), `engine` (processes, weights, compilation), `rows` (first ones read, rendered,
        tokenised). The last four overlap the others; only their seconds after `claim` count. They are missing
        in a job without requests.
    :param generation_seconds: from the first request to the last finished row.
    :param commit_seconds: publishing the dataset.
    :param total_seconds: from the job's start until the dataset was written.
    """

    preflight_seconds: float = 0.0
    startup_seconds: float = 0.0
    phases: dict[str, float] = Field(default_factory=dict)
    generation_seconds: float = 0.0
    commit_seconds: float = 0.0
    total_seconds: float = 0.0
    output_tokens_per_second: float = 0.0
    rows_per_second: float = 0.0


class Digests(ContractModel):
    """What the responses depend on: SHA-256, 32 hex digits; empty where an engine has no such thing.

    :param spec: the spec's response digest.
    :param adapters: weights and config of each adapter, by its name.
    """

    model: str = ""
    tokenizer: str = ""
    chat_template: str = ""
    spec: str = ""
    adapters: dict[str, str] = Field(default_factory=dict)


class Savings(ContractModel):
    """Input and output tokens that the run would have paid for besides, by what saved them.

    :param resumed: earlier jobs had the answers: attempts of this run, and runs before a clear.
    :param reused: the response store had them.
    :param duplicates: equal rows of this dataset had them.
    :param filled: choices forced these tokens, so they were not generated.
    :param cost: estimate at this run's own cost a token; ``None`` if that is not known.
    """

    resumed: int = Field(default=0, ge=0)
    reused: int = Field(default=0, ge=0)
    duplicates: int = Field(default=0, ge=0)
    filled: int = Field(default=0, ge=0)
    cost: float | None = None


class RunStatistics(ContractModel):
    """What a run took.

    :param timing: of this submission; so are `stages`, `replicas`, `plan` and `versions`.
    :param replicas: what each one did.
    :param gpu_seconds: GPUs times seconds for which replicas held them, in all attempts since the last clear.
        A driver that is killed may lose its last minute.
    :param gpu_seconds_by_type: the same by Ray's accelerator type, ``""`` if it is not known.
    :param gpu_hour_price: price of one GPU by accelerator type; types without a price are left out.
    :param cost: `gpu_seconds_by_type` times `gpu_hour_price`; 0 without GPUs, ``None`` unless each type has a
        price.
    :param currency: currency of `gpu_hour_price` and `cost`, in ISO 4217.
    :param effective_sampling: the model's `generation_config`, merged with `sampling`.
    :param plan: the job's sizes, each as `value` and `reason`; the engine's own under `engine`.
    :param versions: of the software.
    """

    cost: float | None = Field(default=None, ge=0)
    currency: str | None = None
    gpu_seconds: float = Field(default=0.0, ge=0)
    gpu_seconds_by_type: dict[str, float] = Field(default_factory=dict)
    gpu_hour_price: dict[str, float] = Field(default_factory=dict)
    timing: Timing = Field(default_factory=Timing)
    stages: StageSeconds = Field(default_factory=StageSeconds)
    replicas: list[ReplicaStats] = Field(default_factory=list)
    effective_sampling: dict[str, Any] = Field(default_factory=dict)
    plan: dict[str, Any] = Field(default_factory=dict)
    digests: Digests = Field(default_factory=Digests)
    versions: dict[str, str] = Field(default_factory=dict)


class RunResult(RunStatistics):
    """What a run came to: its manifest has it, and its report.

    :param counts: ``None`` if no dataset was published; so are `tokens_saved`, `tokens_generated` and
        `savings`.
    :param tokens_paid: input and output tokens that the run paid for, in all attempts since the last clear,
        failed rows included. Tokens that a killed process had not written count as of its last report
        (replica: each second; driver: each half minute).
    :param tokens_lost: tokens of `tokens_paid` whose answers were not written before their process was
        killed.
    :param tokens_saved: input and output tokens of `tokens` that the run did not pay for: earlier runs, the
        response store or equal rows had the answers.
    :param tokens_generated: tokens of `tokens.output` that this submission generated.
    :param savings: what resume, reuse and the like saved: `tokens_saved`, answers of earlier attempts, and
        forced tokens.
    :param steps: counts of each of `steps`, in their order; ``None`` for one question, or if not known.
    :param finish_reasons: completions by finish reason (``stop``, ``length``, ...).
    :param last_run: the task's dataset before this one, if known.
    :param uri: the immutable folder that holds the dataset and nothing else; ``None`` if there is none.
    :param dead_letter_uri: folder of the failed rows, with reason and request; ``None`` if there are none.
    :param submission_id: Ray's id of the job.
    :param created_at: ISO 8601, in UTC.
    """

    counts: Counts | None = None
    tokens: Tokens = Field(default_factory=Tokens)
    tokens_paid: int = Field(default=0, ge=0)
    tokens_lost: int = Field(default=0, ge=0)
    tokens_saved: int | None = Field(default=None, ge=0)
    tokens_generated: int | None = Field(default=None, ge=0)
    savings: Savings | None = None
    steps: list[StepCounts] | None = None
    finish_reasons: dict[str, int] = Field(default_factory=dict)
    last_run: LastRun | None = None
    format: str | None = None
    uri: str | None = None
    manifest_uri: str | None = None
    dead_letter_uri: str | None = None
    submission_id: str
    created_at: str


class BatchManifest(RunResult):
    """A committed dataset, so `counts`, `format`, `uri`, tokens and savings are never ``None`` in it.

    :param report_uri: ``report.html``, with ``report.json`` beside it; ``None`` if it could not be written.
    :param errors_uri: folder of the failed rows as OpenAI's error files, if `format` is ``openai_batch``.
    :param ordered: whether `preserve_order` promised the input's order.
    :param reasons_by_step: the most frequent reason of each step in `counts.errors_by_step`, its first
        sentence.
    :param id_column: the column whose values identify the rows; ``None``: their positions in the input.
    :param response_column: the column with the responses.
    :param chunk_column: the column with each chunk's number, if `chunk_tokens` cut texts.
    :param files: in the order of the dataset.
    :param owner: the task that made it.
    :param run_token: of the task's run; a retry keeps it, a clear renews it.
    """

    schema_version: Literal[1] = 1
    uri: str
    manifest_uri: str
    report_uri: str | None = None
    errors_uri: str | None = None
    format: OutputFormat
    ordered: bool = False
    files: list[ManifestFile]
    columns: list[Column] = Field(alias="schema")
    counts: Counts
    tokens_saved: int = Field(default=0, ge=0)
    tokens_generated: int = Field(default=0, ge=0)
    savings: Savings = Field(default_factory=Savings)
    reasons_by_step: dict[str, str] = Field(default_factory=dict)
    id_column: str | None = None
    response_column: str | None = None
    chunk_column: str | None = None
    owner: TaskKey
    run_token: str

    model_config: ClassVar[ConfigDict] = ConfigDict(**{
        **ContractModel.model_config,
        "populate_by_name": True,
    })

    @property
    def main_failure(self) -> str | None:
        """Where most of the failed rows failed, and why: ``engine: the prompt is empty``.

        Rows whose batch had ended before they were asked are left out.
        """
        by_step = self.counts.errors_by_step
        steps = {step: rows for step, rows in by_step.items() if step not in get_args(EarlyEnd)}
        if not steps:
            return None
        step = max(steps, key=lambda one: steps[one])
        where = f"{'mostly ' if len(steps) > 1 else ''}{step}"
        return f"{where}: {self.reasons_by_step[step]}" if step in self.reasons_by_step else where

    def summary(self) -> Summary:
        """What the next task needs, small enough for an XCom."""
        own = Summary.model_fields.keys() & BatchManifest.model_fields.keys()
        counts = self.counts
        return Summary(**{
            **{name: getattr(self, name) for name in own},
            **{name: getattr(counts, name) for name in ("resumed", "reused", "duplicates", "chunks")},
            "rows": counts.ok,
            "errors": counts.error,
            "unanswered": counts.unanswered,
            "main_failure": self.main_failure,
            "output_tokens_per_second": self.timing.output_tokens_per_second,
            "seconds": self.timing.total_seconds,
            # The columns may be thousands, and an event or XCom has to stay small.
            "last_run": self.last_run and self.last_run.model_copy(update={"columns": None}),
        })

    def as_last_run(self) -> LastRun:
        """What the manifest of the next dataset of the destination says about this one."""
        summary = self.summary()
        return LastRun(**{
            **{name: getattr(summary, name) for name in LastRun.model_fields.keys() & Summary.model_fields},
            "input_tokens": self.tokens.input,
            "output_tokens": self.tokens.output,
            "output_tokens_per_second": summary.output_tokens_per_second or None,
            "finish_reasons": self.finish_reasons,
            "errors_by_step": self.counts.errors_by_step,
            "columns": {column.name: column.type for column in self.columns},
            "created_at": self.created_at,
        })


def parse_manifest(content: bytes, file: str) -> BatchManifest:
    """The manifest in a file.

    :param file: where it lies.
    :raises SpecError: names the file, which is broken, foreign or of another version.
    """
    return parse_file(
        BatchManifest, content, file, "a manifest", "restore it, or make the dataset again in another folder"
    )


class Summary(ContractModel):
    """A manifest in a few lines: travels in the job's last event.

    :param rows: good rows; `resumed`, `reused` and `duplicates` are of them, and they became `chunks`, as in
        :class:`Counts`.
    :param errors: all other rows; of them, `unanswered` were not asked before their batch ended.
    :param main_failure: see :attr:`BatchManifest.main_failure`.
    :param steps: see :class:`BatchManifest`.
    :param seconds: the job's, from its start until the dataset was written.
    """

    uri: str
    manifest_uri: str
    dead_letter_uri: str | None = None
    format: OutputFormat
    rows: int
    errors: int
    unanswered: int = 0
    main_failure: str | None = None
    resumed: int = 0
    reused: int = 0
    duplicates: int = 0
    chunks: int | None = None
    tokens: Tokens
    tokens_paid: int = 0
    tokens_saved: int = 0
    tokens_generated: int = 0
    gpu_seconds: float = 0.0
    cost: float | None = None
    currency: str | None = None
    savings: Savings = Field(default_factory=Savings)
    steps: list[StepCounts] | None = None
    report_uri: str | None = None
    output_tokens_per_second: float = 0.0
    seconds: float = 0.0
    last_run: LastRun | None = None


class Published(ContractModel):
    """The dataset that readers see: its manifest (relative to the destination), and the run that made it."""

    manifest: str
    run_token: str
    fingerprint: str = ""


class JournalEntry(ContractModel):
    """One line of the journal; `published` is carried on, so that the last entry tells everything.

    `nonce` makes each entry unlike any other, also that of a lost cluster's job with the same submission id.
    """

    number: int
    kind: Literal["claim", "commit"]
    owner: TaskKey
    run_token: str
    submission_id: str
    at: str
    nonce: str = ""
    published: Published | None = None

    @field_validator("at")
    @classmethod
    def _is_a_time(cls, at: str) -> str:
        try:
            datetime.datetime.fromisoformat(at)
        except ValueError:
            raise ValueError(f"it must be a time in ISO 8601, but it is {at!r}") from None
        return at


_REMEDY = "restore it, remove it if it came from elsewhere, or choose another destination"


def parse_entry(content: bytes, file: str) -> JournalEntry:
    """The entry in `file`; a :class:`SpecError` names one that is broken, foreign or another's copy."""
    entry = parse_file(JournalEntry, content, file, "an entry of a journal", _REMEDY)
    if not file.endswith(journal_entry(entry.number)):
        raise SpecError(f"{file}: it holds entry {entry.number}, so it is a copy; {_REMEDY}.")
    return entry
