# SPDX-License-Identifier: Apache-2.0
"""What a run took, and ``report.json`` and ``report.html`` of a job; their errors are warnings."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.arguments.engine import EngineArguments, ModelArguments
from airflow_provider_raybatch.contract.arguments.images import ImageArguments
from airflow_provider_raybatch.contract.arguments.prompt import PromptArguments
from airflow_provider_raybatch.contract.arguments.sampling import SamplingArguments
from airflow_provider_raybatch.contract.arguments.task import ChunkArguments, TaskArguments
from airflow_provider_raybatch.contract.arguments.tools import ToolArguments
from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.layout import REPORT_DATA, REPORT_PAGE, commit_of, report_folder
from airflow_provider_raybatch.contract.manifest import BatchManifest, RunResult, RunStatistics, Timing
from airflow_provider_raybatch.contract.report import FailureGroup, Report, Sample
from airflow_provider_raybatch.contract.run_numbers import Moment, ReplicaStats, StageSeconds
from airflow_provider_raybatch.contract.spec import NOT_ARGUMENTS, BatchInferenceSpec
from airflow_provider_raybatch.contract.text import all_storable, cut_to, shown_uri, without_queries
from airflow_provider_raybatch.job.failures.diagnosis import said
from airflow_provider_raybatch.job.output.tally import Tally
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.work import Ran
from airflow_provider_raybatch.report.page import report_page
from airflow_provider_raybatch.storage.folder import Folder

if TYPE_CHECKING:  # they import Ray, which readers of reports may lack
    from airflow_provider_raybatch.job.monitor.money import Money
    from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
    from airflow_provider_raybatch.job.monitor.start_up import StartUp

_EXPLAIN = (
    TaskArguments, ModelArguments, PromptArguments, ChunkArguments, ToolArguments, SamplingArguments,
    ImageArguments, EngineArguments,
)  # fmt: skip
_LONGEST = 4000
"""Characters of one argument's text, such as a chat template."""
_SECRET = re.compile(
    r"token$|secret|passw|passphrase|credential|(api|access|private|auth|account)_?key|authorization|cookie|^auth$",
    re.IGNORECASE,
)
_SECRETS = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|(AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{30,}|glpat-[\w-]{20,}|sk-[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
)
"""Values that are secrets, whatever their names."""
_MASK = "***"
_OF_SCHEMAS = frozenset({"type", "enum", "anyOf", "allOf", "oneOf", "$ref"})
"""Keys of a field's JSON schema, whose name is not that of a value."""
_NO_SECRETS = frozenset({"bos_token", "eos_token", "pad_token", "unk_token", "seconds_per_token"})

Rendered = Callable[[Sequence[Mapping[str, Any]]], Sequence[str | None]]
"""Requests of rows as texts, made by a user's function."""


@dataclass(frozen=True)
class DatasetReport:
    """Writes the report of a dataset that is about to be committed.

    :param course: of the job.
    :param attempts: jobs of the run that are known.
    :param render: calls a user's `prompt_function`; ``None`` where the job has none.
    :param emit: called with a warning, if there is one.
    """

    folder: Folder
    spec: BatchInferenceSpec
    course: Sequence[Moment]
    attempts: int
    emit: Callable[[Notice], None]
    render: Rendered | None = None

    def __call__(self, manifest: BatchManifest, tally: Tally) -> str | None:
        """Where its page lies; ``None`` if it could not be written."""
        try:
            place = report_folder(str(commit_of(manifest.manifest_uri.removeprefix(f"{self.folder.uri}/"))))
            shown = replace(tally, samples=self._with_requests(tally))
            report = report_of(manifest, shown, self.spec, self.course, self.attempts)
            write(self.folder, place, report)
        except Exception as error:  # the dataset is what the job is for
            self.emit(warning(error, self.spec.shows_rows))
            return None
        if tally.flaw is not None:
            text = f"the report lacks lengths, samples or answers of some rows ({tally.flaw})"
            self.emit(Notice(level="warning", message=text))
        return f"{self.folder.uri}/{place}/{REPORT_PAGE}"

    def _with_requests(self, tally: Tally) -> list[Sample]:
        if not tally.values or self.render is None:
            return tally.samples
        texts: dict[int, str | None] = {}
        with contextlib.suppress(Exception):  # the rest of the report does not need the function
            texts.update(zip(tally.values, self.render(list(tally.values.values())), strict=True))
        return [
            one.model_copy(update={"request": texts.get(one.ordinal, one.request)}) for one in tally.samples
        ]


def warning(error: Exception, shows_rows: bool) -> Notice:
    """The log line of a report that could not be made."""
    why = without_queries(" ".join(said(error, shows_rows).split()))[:300] or type(error).__name__
    return Notice(level="warning", message=f"the report of this job is not written whole: {why}")


def write(folder: Folder, place: str, report: Report) -> None:
    """Write both files: what the page is made of, and the page, which may fail without the first.

    :param place: folder relative to `folder`.
    """
    folder.write(f"{place}/{REPORT_DATA}", report.model_dump_json().encode())
    folder.write(f"{place}/{REPORT_PAGE}", report_page(report).encode("utf-8", "replace"))


def report_of(
    manifest: BatchManifest, tally: Tally, spec: BatchInferenceSpec, course: Sequence[Moment], attempts: int
) -> Report:
    """The report of a committed dataset."""
    counts = manifest.counts
    result = {name: getattr(manifest, name) for name in RunResult.model_fields}
    report = Report(
        **{**result, **_told(tally), "last_run": manifest.last_run or spec.last_run},
        rows=counts.ok,
        errors=counts.error,
        total=counts.input,
        seconds=manifest.timing.total_seconds,
        state="committed",
        attempts=attempts,
        failures=[
            FailureGroup(
                step=step,
                rows=rows,
                reason=manifest.reasons_by_step.get(step),
                examples=tally.examples.get(step, []),
            )
            for step, rows in Counter(counts.errors_by_step).most_common()
        ],
        samples=tally.samples,
        course=list(course),
        columns={column.name: column.type for column in manifest.columns},
        arguments=explaining(spec),
        task=manifest.owner,
    )
    return report if spec.shows_rows else report.without_content()


def _told(tally: Tally) -> dict[str, Any]:
    """What the report tells of answers: of one question in its own fields."""
    told = [one.told for one in tally.questions]
    if told and told[0].step is None:
        return {name: getattr(told[0], name) for name in ("prompt_tokens", "output_tokens", "answers")}
    reasons: Counter[str] = sum((Counter(one.finish_reasons) for one in told), Counter())
    return {"answers_by_step": told, "finish_reasons": dict(reasons)} if told else {}


def explaining(spec: BatchInferenceSpec) -> dict[str, Any]:
    """The arguments that explain a result, as they were given; without defaults and secrets.

    :param spec: of all steps.
    """
    names = {"steps"}.union(*[group.model_fields for group in _EXPLAIN]) - NOT_ARGUMENTS
    given = spec.model_dump(mode="json", include=names, exclude_defaults=True)
    ordered = {name: given[name] for name in type(spec).model_fields if name in given}
    first = {"model": spec.model, "engine": spec.engine}
    shown: dict[str, Any] = all_storable(_shown({**first, **ordered}))
    return {**shown, "source": [cut_to(shown_uri(one), _LONGEST) for one in spec.source[:20]]}


def _shown(value: Any, name: str = "", is_secret: bool = False) -> Any:
    """`value` without secrets.

    :param is_secret: whether it lies in a value that is secret by its name.
    """
    is_secret = is_secret or (bool(_SECRET.search(name)) and name not in _NO_SECRETS)
    if isinstance(value, dict):
        is_secret = is_secret and not _OF_SCHEMAS.intersection(value)
        return {key: _shown(inner, str(key), is_secret) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shown(inner, name, is_secret) for inner in value]
    if isinstance(value, str):
        return _MASK if is_secret else cut_to(_SECRETS.sub(_MASK, without_queries(value)), _LONGEST)
    return value


def statistics_of(ran: Ran, plan: Plan, start_up: StartUp, money: Money) -> RunStatistics:
    """Timing and statistics of what the replicas did."""
    gpu_seconds = money.gpu_seconds_by_type
    first = min((one.first_request for one in ran.reports if one.first_request), default=0.0)
    generation = max(0.0, ran.last_row - first) if first else 0.0
    rows, tokens = sum(one.rows for one in ran.reports), sum(one.output_tokens for one in ran.reports)
    return RunStatistics(
        timing=Timing(
            preflight_seconds=round(start_up.seconds, 2),
            startup_seconds=round(first - start_up.began, 2) if first else 0.0,
            phases=start_up.phases(ran.reports),
            generation_seconds=round(generation, 2),
            output_tokens_per_second=round(tokens / generation, 1) if generation else 0.0,
            rows_per_second=round(rows / generation, 2) if generation else 0.0,
            total_seconds=round(time.time() - start_up.began, 2),
        ),
        stages=StageSeconds(**{stage: round(spent, 3) for stage, spent in ran.seconds.items()}),
        replicas=replica_stats(ran.reports),
        effective_sampling=dict(ran.engine.effective_sampling),
        plan={**plan.shown(), "engine": dict(ran.engine.sizes)},
        versions=dict(ran.engine.versions),
        gpu_seconds=round(sum(gpu_seconds.values()), 1),
        gpu_seconds_by_type=gpu_seconds,
        gpu_hour_price=money.used_prices,
        cost=money.cost,
        currency=money.prices.currency if money.prices.gpu_hour_price else None,
    )


def replica_stats(reports: Sequence[ReplicaProgress]) -> list[ReplicaStats]:
    """What each replica did."""
    first = min((one.first_request for one in reports if one.first_request), default=0.0)
    return [_stats(one, first) for one in reports]


def _stats(report: ReplicaProgress, first: float) -> ReplicaStats:
    """What a replica did; `first` is when the first request of all was made, in epoch seconds."""
    # Rows that fail before the engine are answered without a request, and nodes' clocks differ.
    began, ended = (
        round(max(0.0, at - first), 2) if at and first else 0.0
        for at in (report.first_request, report.last_answer)
    )
    return ReplicaStats.model_validate(report, from_attributes=True).model_copy(
        update={"began_seconds": began, "ended_seconds": ended}
    )
