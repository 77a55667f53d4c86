# SPDX-License-Identifier: Apache-2.0
"""The sizes that a job would have, each with its reason, and how long its prompts are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.preview import CutOff, PlanReport, PreviewRequest, PromptTokens, Size
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK, Source
from airflow_provider_raybatch.job.monitor.budgets import Tolerance
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.preflight.check import Facts
from airflow_provider_raybatch.job.preflight.checked_job import StepLedgers
from airflow_provider_raybatch.job.preflight.input_check import SampledRows
from airflow_provider_raybatch.job.preflight.memory_check import expected_fit, with_length
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preview import tokens
from airflow_provider_raybatch.job.preview.counters import PromptLength
from airflow_provider_raybatch.job.preview.inspection import (
    Refusals,
    Uncounted,
    asked,
    sized,
    store_of,
    unfinished,
)
from airflow_provider_raybatch.job.preview.tokens import (
    MOST_COUNTED,
    ROWS_PER_RUN,
    Counted,
    Question,
    picked_runs,
)
from airflow_provider_raybatch.job.reuse.reuse import plan_reuse
from airflow_provider_raybatch.job.reuse.row_keys import ranges_for, request_keys
from airflow_provider_raybatch.job.run.cpu_tasks import keys_over_the_cluster
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.work import Job, work

_SEED = 0


def plan_report(facts: Facts, request: PreviewRequest, refusals: Refusals) -> PlanReport:
    """The report.

    :param facts: by :func:`~airflow_provider_raybatch.job.preview.inspection.inspect`.
    """
    source, spec = facts.get(Source), facts[BatchInferenceSpec]
    files = () if source is None else source.listing.files
    counted: PromptTokens | None = None
    later: dict[str, PromptTokens] = {}
    remaining = unfinished(facts)
    sizing: Plan | None = None
    if source is not None and facts.get(SampledRows) is not None:
        with refusals.caught():
            counted = _counted(facts, source, request, refusals)
            for number, question in enumerate(spec.questions()):
                if number and (one := _counted(facts, source, request, refusals, number)) is not None:
                    later[question.step_name] = one.model_copy(update={"cut_offs": ()})
        if counted is not None and not counted.is_sample:
            with refusals.caught():
                remaining = _remaining(facts, source, refusals)
        elif spec.reuse is not None:
            refusals.note("the response store was not searched for all rows, so fewer rows may be left")
        with refusals.caught():
            sizing = sized(facts, remaining, refusals)
    return PlanReport(
        rows=None if source is None else source.rows,
        refusals=tuple(refusals.sentences),
        notices=tuple(refusals.notices),
        files=len(files),
        bytes=sum(file.size for file in files),
        remaining=None if source is None else remaining,
        prompt_tokens=counted,
        later_steps=later,
        sizes=() if sizing is None else (*_sizes(sizing.shown()), *_of_memory(facts, sizing)),
    )


def _counted(
    facts: Facts, source: Source, request: PreviewRequest, refusals: Refusals, step: int = 0
) -> PromptTokens | None:
    """How long the prompts are; ``None`` where that can't be told."""
    if facts.get(Uncounted) is not None or not source.rows:
        return None
    chunks = source.chunks(ROWS_PER_RUN)
    picked = picked_runs(chunks, None if request.all_rows else MOST_COUNTED, request.seed or _SEED)
    refusals.begin(f"counting tokens of {count_of(sum(len(rows) for _, rows in picked), 'prompt')}")
    made = tokens.ask(Question(asked(facts, step), picked))
    if made.problem:
        if facts.get(ModelCheck) is not None:  # else the check of the model says why
            refusals.refuse(made.problem)
        return None
    made.note_images(refusals)
    is_sample = len(picked) < len(chunks)
    if not is_sample and not step:
        with refusals.caught():
            _refuse_failures(facts, source, made, refusals)
    return prompt_tokens(made.lengths, made.context, is_sample)


def _refuse_failures(facts: Facts, source: Source, made: Counted, refusals: Refusals) -> None:
    """:raises RaybatchError: more rows would fail than the job allows, by what all rows show."""
    ledgers = facts.get(StepLedgers)
    failures = [
        (ordinal, one.failure)
        for ordinal, one in zip(made.ordinals, made.lengths, strict=True)
        if one.failure is not None and not (ledgers and ledgers.first.good[ordinal])
    ]
    tolerance = Tolerance(facts[BatchInferenceSpec], source.rows)
    if tolerance.exceeded(len(failures)):
        refusals.withdraw("max_error_fraction:", "max_errors:")
    tolerance.before(failures, source.rows)


def _remaining(facts: Facts, source: Source, refusals: Refusals) -> int:
    """Rows that would be asked."""
    spec, job, ledgers = facts[BatchInferenceSpec], facts.get(Job), facts.get(StepLedgers)
    if job is None or ledgers is None:
        return unfinished(facts)
    if job.before:
        refusals.note(
            "steps: answers in the response store and of earlier inputs were not looked for, so fewer rows "
            "may be asked"
        )
        return unfinished(facts)
    earlier, store = ledgers.last, store_of(facts)
    resolved = earlier.good | earlier.given_up(spec.max_row_attempts)
    reuse = plan_reuse(job, source, earlier, resolved, store, keys_over_the_cluster, refusals.emit)
    if reuse.notice:
        refusals.note(reuse.notice)
    done = resolved | reuse.rows
    equal = _equal(job, source, done) if spec.deduplicate and spec.engine != ray_data_llm.NAME else 0
    if equal:
        refusals.note(f"{count_of(equal, 'row asks', 'rows ask')} what another row asks, for the same answer")
    return int(np.count_nonzero(~done)) - equal


def _equal(job: Job, source: Source, done: RowMask) -> int:
    """How many of the other rows ask what one of them asks."""
    items, number = work(source, ROWS_PER_CHUNK, done), ranges_for(source.rows)
    greedy = (some.keys[some.greedy] for some in request_keys(job, items, number, keys_over_the_cluster))
    return sum(len(own) - len(np.unique(own)) for own in greedy)


def _sizes(shown: Mapping[str, object]) -> list[Size]:
    """As the log and the manifest of the job would have them."""
    found = []
    for name, one in shown.items():
        if isinstance(one, dict):
            found.append(Size(name=name, value=str(one["value"]), reason=str(one["reason"])))
    return found


def _of_memory(facts: Facts, sizing: Plan) -> list[Size]:
    """What the model leaves of a GPU, and what else would fit."""
    checked, spec = facts.get(ModelCheck), facts[BatchInferenceSpec]
    if checked is None or spec.engine != "vllm":
        return []
    engine = _sizes(checked.shown())
    if not sizing.gpus:
        return engine
    spec = with_length(spec, checked.length)
    fit = expected_fit(spec, checked.sizes, cluster_view.view())
    fits = {True: "fits", False: "does not fit", None: ""}[fit.fits]
    values = {"model": fits, "parallel": ", ".join(f"{name}={size}" for name, size in fit.parallel.items())}
    of_model = [Size(name=name, value=values.get(name, ""), reason=why) for name, why in fit.reasons.items()]
    return [*engine, *of_model]


_SMALLEST = 128
_MOST_CUT_OFFS = 8
Lengths: TypeAlias = npt.NDArray[np.int64]


def prompt_tokens(lengths: Sequence[PromptLength], context: int, is_sample: bool) -> PromptTokens:
    """The figures of counted rows.

    :param context: of the model as the job would use it.
    """
    whole = np.array([one.whole for one in lengths], np.int64)
    sent = np.array([one.sent for one in lengths], np.int64)
    most = np.array([one.max_tokens for one in lengths], np.int64)
    good = np.sort(sent[sent >= 0])
    known = whole >= 0
    return PromptTokens(
        rows=len(lengths),
        failed=int(np.count_nonzero(sent < 0)),
        is_sample=is_sample,
        total=int(good.sum()),
        p50=_quantile(good, 0.5),
        p95=_quantile(good, 0.95),
        p99=_quantile(good, 0.99),
        longest=int(whole.max(initial=0)),
        context=context,
        max_tokens=int(most.max()) if len(most) and (most >= 0).all() else None,
        cut_offs=tuple(_cut_offs(whole[known], most[known], context)),
    )


def _quantile(ascending: Lengths, share: float) -> int:
    """The smallest length that at least this share of the rows does not exceed."""
    return int(ascending[math.ceil(share * len(ascending)) - 1]) if len(ascending) else 0


def _cut_offs(whole: Lengths, most: Lengths, context: int) -> list[CutOff]:
    """Powers of two below the context, from the first at which a row fits to the first that costs nothing."""
    found: list[CutOff] = []
    wanted = whole + np.maximum(most, 1)  # without a limit, a response takes what room there is
    size = _SMALLEST
    while size < context and len(whole):
        failed = int(np.count_nonzero(whole >= size))
        shortened = int(np.count_nonzero((whole < size) & (wanted > size)))
        if failed < len(whole):
            found.append(CutOff(max_model_len=size, failed=failed, shortened=shortened))
        if not failed and not shortened:
            break
        size *= 2
    return found[-_MOST_CUT_OFFS:]
