# SPDX-License-Identifier: Apache-2.0
"""What a preview job reports: rows as they would be asked, and the sizes that a job would have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel, cleaned

MOST_ROWS = 100
"""Rows of one preview, at most."""
MOST_CHARACTERS = 8_000
"""Of a row's texts, so that a row stays one event."""
MOST_OF_STEP = 3_500
"""Characters of what a step asks about a row, and of what it answers, which are one event."""
MOST_ASKED = 20
"""Rows of one preview whose answers can be asked for, at most."""
ORPHAN_TIMEOUT = 30.0
"""Seconds after which a preview job ends itself without a command line that waits for it."""

Answered = Literal["earlier job", "earlier input", "response store"]
"""Where a row has an answer: earlier jobs of this run, the task's parts of another input, the store."""


Shown = Annotated[str, cleaned()]
"""Text of a row or a name, fit for a terminal."""
Sentence = Annotated[str, cleaned(2_000)]
"""For people."""


class PreviewRequest(ContractModel):
    """What is wanted; it travels beside the spec.

    :param verb: ``preview`` or ``plan``.
    :param rows: of a preview, 1 to 100.
    :param seed: of a random sample of rows; ``None`` for the first rows.
    :param all_rows: whether `plan` counts the tokens of all rows, however many there are.
    :param ask: of a preview, how many of the rows the engine is asked for, 0 to 20.
    """

    verb: Literal["preview", "plan"]
    rows: int = Field(default=10, ge=1, le=MOST_ROWS)
    seed: int | None = None
    all_rows: bool = False
    ask: int = Field(default=0, ge=0, le=MOST_ASKED)


class ShownMessage(ContractModel):
    """A message of a chat, or a raw prompt (`role` empty)."""

    role: Shown
    text: Shown


class PreviewRow(ContractModel):
    """A row as it would be asked.

    :param ordinal: its position in the input, from 0.
    :param row_id: value of the id column, if one is declared.
    :param messages: as they are rendered; together at most 8,000 characters, the rest is cut with a mark.
    :param sampling: the row's own parameters, as JSON; empty if it has none.
    :param tokens: of the prompt, chat template and images included, or of the longest of a row's chunks or
        pairs; ``None`` if they could not be counted.
    :param cut_tokens: how many are cut off by ``on_overlong='truncate'``, of the whole row.
    :param key: the request key, 32 hex digits; ``None`` if the row makes no request, or the model could not
        be checked.
    :param answered: where the row has an answer already, of several steps one of the first.
    :param same_as: position of the earlier row, among those shown, that asks the same.
    :param failure: step and reason, if the row would be a dead letter.
    :param is_skipped: whether the first of several steps does not ask it.
    """

    ordinal: int = Field(ge=0)
    row_id: Shown | None = None
    messages: tuple[ShownMessage, ...] = ()
    sampling: Shown = ""
    tokens: int | None = None
    cut_tokens: int = 0
    key: str | None = None
    answered: Answered | None = None
    same_as: int | None = None
    failure: Sentence | None = None
    is_skipped: bool = False


class ShownCompletion(ContractModel):
    """One completion; `finish_reason` is the engine's word."""

    text: Shown
    finish_reason: Shown
    output_tokens: int


class RowAnswer(ContractModel):
    """What the engine answered to a row of a preview, or of one of several steps about it.

    :param ordinal: the row's position in the input.
    :param step: its name, of a task with steps; else empty.
    :param messages: what a later step has asked, at most 16; :class:`PreviewRow` has those of the first.
    :param completions: as they came, also where the row would fail; together at most 8,000 characters, of a
        step 3,500 (and so many of its `messages`), the rest is cut with a mark.
    :param input_tokens: of the prompt, as the engine counts them.
    :param columns: what else the dataset would have of the response, such as the typed columns of
        `response_format`, as one JSON object; empty if the row has none, cut at 4,000 characters.
    :param failure: step and reason, if the row would be a dead letter.
    """

    ordinal: int = Field(ge=0)
    step: Shown = ""
    messages: tuple[ShownMessage, ...] = ()
    completions: tuple[ShownCompletion, ...] = ()
    input_tokens: int = 0
    columns: Shown = ""
    failure: Sentence | None = None


class Findings(ContractModel):
    """What `preview` and `plan` both report.

    :param rows: of the input, `limit` applied; ``None`` if the source could not be read.
    :param refusals: why the job would be refused, a sentence each; empty if it would run.
    :param notices: what else the job would say, and what a preview can't tell.
    """

    rows: int | None = None
    refusals: tuple[Sentence, ...] = ()
    notices: tuple[Sentence, ...] = ()


class Preview(Findings):
    """The end of a preview. `rows_shown` rows were reported before."""

    rows_shown: int = 0


class CutOff(ContractModel):
    """What a context of `max_model_len` tokens would do to the rows that were counted.

    :param failed: rows whose prompt leaves no room for a response: dead letters, or cut by ``on_overlong``.
    :param shortened: rows whose prompt fits, but not with `max_tokens` more.
    """

    max_model_len: int
    failed: int
    shortened: int


class PromptTokens(ContractModel):
    """How long prompts are, chat template included.

    :param rows: that were counted.
    :param failed: of them, those that make no request that fits; they are in no other figure but `longest`.
    :param is_sample: whether other rows were not counted.
    :param total: what the manifest of the job has as input tokens, if no row fails later.
    :param longest: before prompts are cut.
    :param context: tokens that prompt and response may have together.
    :param max_tokens: of a response, at most, over the rows; ``None`` if it may fill the context.
    """

    rows: int
    failed: int = 0
    is_sample: bool = False
    total: int = 0
    p50: int = 0
    p95: int = 0
    p99: int = 0
    longest: int = 0
    context: int = 0
    max_tokens: int | None = None
    cut_offs: tuple[CutOff, ...] = ()


class Size(ContractModel):
    """A size of the job and its reason."""

    name: str
    value: Sentence
    reason: Sentence = ""


class PlanReport(Findings):
    """What a job would take, as the cluster is now.

    :param files: of the source; `bytes` as they are stored.
    :param remaining: rows that would be asked: without those that have an answer, or ask what another asks;
        of several steps, without those that earlier jobs of the run have finished.
    :param prompt_tokens: ``None`` if they could not be counted; of several steps, those of the first.
    :param later_steps: those of the others, by name, where an answer that they read counts as one token.
    :param sizes: each value that is derived, or set by an argument.
    """

    files: int = 0
    bytes: int = 0
    remaining: int | None = None
    prompt_tokens: PromptTokens | None = None
    later_steps: dict[str, PromptTokens] = Field(default_factory=dict)
    sizes: tuple[Size, ...] = ()
