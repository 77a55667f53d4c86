# SPDX-License-Identifier: Apache-2.0
"""Reports of good, bad and hostile jobs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import Savings, Timing
from airflow_provider_raybatch.contract.report import (
    Answer,
    Bin,
    FailedExample,
    FailureGroup,
    Report,
    Sample,
    SampleAnswer,
    StepAnswers,
)
from airflow_provider_raybatch.contract.run_numbers import (
    Counts,
    LastRun,
    Moment,
    ReplicaStats,
    StepCounts,
    Tokens,
)
from airflow_provider_raybatch.contract.submission import TaskKey

NASTY = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</style><svg onload=alert(1)>",
    '" onmouseover="alert(1)',
    "javascript:alert(1)",
    "]]> --> <!-- &lt; &amp;amp; {{ x }} {% y %}",
    "\u202eright to left\u2066 and no way back",
    "\u0627\u0644\u0634\u0631\u0643\u0629 \u0634\u0631\u0643\u0629 (A) 123",
    "nul \x00 bell \x07 escape \x1b[31m red, half \ud800, none \uffff, lines \u2028 \u2029 \r\n end",
    "```\n# heading\n---\n| a | b |\n![x](http://example.com/x.png) [l](javascript:alert(1))",
    "line\nline",
)
"""Texts that try to get out of where they are shown."""

TASK = TaskKey(
    namespace="a1b2",
    dag_id="nightly",
    run_id="scheduled__2026-11-27T02:00:00+00:00",
    task_id="label",
    map_index=-1,
)
LAST = LastRun(
    rows=9_700, errors=12, seconds=401.0, input_tokens=2_000_000, output_tokens=160_000,
    tokens_paid=2_200_000,
    output_tokens_per_second=650.0, gpu_seconds=1500.0, cost=1.67, currency="USD", resumed=0, reused=300,
    duplicates=90, finish_reasons={"stop": 9_700}, errors_by_step={"tokenize": 12},
    columns={"id": "int64", "company": "string", "score": "int64", "old": "string", "response": "string"},
    created_at="2026-11-26T02:09:30.123456+00:00",
)  # fmt: skip
PHASES = {
    "source": 1.2, "prompt": 0.3, "nodes": 14.0, "model": 6.2, "earlier": 2.5, "claim": 0.4, "replica": 3.1,
    "import": 5.3, "engine": 20.0, "rows": 2.0,
}  # fmt: skip
ARGUMENTS = {
    "model": "unsloth/Llama-3.1-8B-Instruct",
    "engine": "vllm",
    "prompt": "What industry is {row.company} in?",
    "system_prompt": "Answer with the industry only.",
    "sampling": {"temperature": 0, "max_tokens": 16},
}
_TOO_LONG = "the prompt has 5,210 tokens, more than the 4,096 of max_model_len"
_NO_CHOICE = "the answer is not one of the choices"
FAILURES = [
    FailureGroup(
        step="tokenize",
        rows=120,
        reason=_TOO_LONG,
        examples=[
            FailedExample(
                ordinal=place,
                id=f"c-{place}",
                reason=_TOO_LONG,
                request="What industry " * 90,
                row=json.dumps({"id": place, "company": "Very long " * 70}),
            )
            for place in range(3)
        ],
    ),
    FailureGroup(
        step="parse",
        rows=30,
        reason=_NO_CHOICE,
        examples=[
            FailedExample(ordinal=77, reason=_NO_CHOICE, request="What industry?", response="I can't say.")
        ],
    ),
]
INDUSTRIES = ("Software", "Retail", "Banking", "Health", "Energy", "Farming", "Transport")


def good() -> Report:
    """A night with some failed rows, after another night."""
    return Report(
        rows=9_850, errors=150, total=10_000,
        tokens=Tokens(input=2_104_330, cached=1_200_000, output=171_500, filled=9_000),
        tokens_paid=2_050_000, tokens_saved=301_000, tokens_generated=165_000, seconds=437.2,
        cost=1.8234, currency="USD", gpu_seconds=1641.06,
        gpu_seconds_by_type={"H100": 1241.06, "A10G": 400.0}, gpu_hour_price={"H100": 4.9, "A10G": 1.21},
        savings=Savings(resumed=0, reused=220_000, duplicates=72_000, filled=9_000, cost=0.27),
        state="committed", attempts=2,
        counts=Counts(input=10_000, ok=9_850, error=150, resumed=0, reused=1_100, duplicates=320,
                      errors_by_step={"tokenize": 120, "parse": 30}),
        failures=FAILURES,
        finish_reasons={"stop": 9_800, "length": 50},
        prompt_tokens=[Bin(first=50 * n, last=50 * n + 49, rows=int(2200 * math.exp(-((n - 4) ** 2) / 5)))
                       for n in range(14)],
        output_tokens=[Bin(first=n, last=n, rows=rows)
                       for n, rows in enumerate((0, 4000, 3500, 1800, 400, 100, 50))],
        answers=[Answer(text=text, rows=3_000 // (place + 1)) for place, text in enumerate(INDUSTRIES)],
        samples=[_sample(place) for place in range(10)],
        timing=Timing(preflight_seconds=9.5, startup_seconds=55.0, generation_seconds=372.0,
                      commit_seconds=4.1, total_seconds=437.2, output_tokens_per_second=461.0,
                      rows_per_second=26.5, phases=PHASES),
        course=[_moment(step) for step in range(76)],
        replicas=[ReplicaStats(replica=str(n), node=f"10.0.0.{n + 1}", rows=4_925, input_tokens=1_000_000,
                               output_tokens=82_000, startup_seconds=40.0 + n, ended_seconds=370.0,
                               gpus=[str(n)], gpu_utilization=93.5)
                  for n in range(2)],
        last_run=LAST,
        arguments=ARGUMENTS,
        plan={"replicas": {"value": 2, "reason": "GPUs that are free now"},
              "rows_in_flight": {"value": 512, "reason": "twice what the KV cache holds"},
              "engine": {"max_model_len": {"value": 4096, "reason": "max_model_len"}}},
        effective_sampling={"temperature": 0, "max_tokens": 16, "top_p": 0.9},
        columns={"id": "int64", "company": "string", "score": "double", "response": "string",
                 "finish_reason": "string"},
        versions={"airflow-provider-raybatch": "0.1.0", "ray": "2.56.0", "vllm": "0.29.0"},
        created_at="2026-11-27T02:09:30.123456+00:00", task=TASK,
        submission_id="raybatch-nightly-label-0123-2", format="parquet",
        uri="s3://lake/industries/data/20261127T020930-0123abcd",
        manifest_uri="s3://lake/industries/manifests/20261127T020930-0123abcd.json",
        dead_letter_uri="s3://lake/industries/dead_letter/20261127T020930-0123abcd",
    )  # fmt: skip


def _moment(step: int) -> Moment:
    return Moment(
        seconds=60.0 + 5 * step,
        rows=min(9_850, 140 * step),
        tokens_per_second=6_500 + 900 * math.sin(step / 4) if step else 0,
        rows_in_flight=max(0, 512 - max(0, step - 62) * 40),
        replicas=1 + (step > 8),
    )


def _sample(place: int) -> Sample:
    company = f"Company {place} Ltd"
    return Sample(
        ordinal=place * 977,
        id=f"c-{place:04d}",
        row=json.dumps({"id": place, "company": company, "country": "DE", "revenue": 1e6 * place}),
        request=f"Answer with the industry only.\n\nWhat industry is {company} in?",
        response=INDUSTRIES[place % 7],
        input_tokens=31,
        output_tokens=2,
        finish_reason="stop",
    )


def changed(**update: Any) -> Report:
    """The good night with other fields."""
    return good().model_copy(update=update)


def bare(**update: Any) -> Report:
    """A report that knows its task alone."""
    known = {
        "state": "ended",
        "created_at": "2026-11-27T02:09:30+00:00",
        "task": TASK,
        "submission_id": "raybatch-1",
    }
    return Report(**{**known, **update})


def in_steps() -> Report:
    """A night with a draft of each row, a repair of those that were rejected, and a judge of all."""
    steps = [
        StepCounts(name="draft", asked=10_000, ok=9_400, rejected=450, errors=150, input_tokens=900_000,
                   output_tokens=120_000),
        StepCounts(name="repair", asked=450, skipped=9_400, ok=450, input_tokens=80_000, output_tokens=11_500,
                   reused=40),
        StepCounts(name="judge", asked=9_850, ok=9_850, input_tokens=1_124_330, output_tokens=40_000),
    ]  # fmt: skip
    asked = [
        {"name": "draft", "prompt": "Describe {row.company}.", "on_rejected": "continue"},
        {"name": "judge", "messages": [{"role": "user", "content": "Judge {row.draft_response}."}]},
    ]
    arguments = {"model": ARGUMENTS["model"], "engine": "vllm", "steps": asked}
    failures = [FailureGroup(step="draft.tokenize", rows=150, reason=_TOO_LONG)]
    told = [
        StepAnswers(step="draft", finish_reasons={"stop": 9_800, "length": 50},
                    prompt_tokens=[Bin(first=80, last=99, rows=9_850)],
                    output_tokens=[Bin(first=10, last=14, rows=9_850)]),
        StepAnswers(step="repair", output_tokens=[Bin(first=20, last=39, rows=450)]),
        StepAnswers(step="judge", finish_reasons={"stop": 9_850},
                    answers=[Answer(text="good", rows=9_000), Answer(text="bad", rows=850)]),
    ]  # fmt: skip
    asked_of = [
        SampleAnswer(step="draft", request="Describe Ann.", response="Ann bakes.", output_tokens=3),
        SampleAnswer(step="judge", request="Judge Ann bakes.", response="good"),
    ]
    return changed(
        steps=steps, arguments=arguments, failures=failures, prompt_tokens=[], output_tokens=[], answers=None,
        answers_by_step=told, finish_reasons={"stop": 19_650, "length": 50},
        samples=[Sample(ordinal=3, steps=asked_of), Sample(ordinal=9, row='{"id": 9}')],
    )  # fmt: skip


def refused() -> Report:
    """A job that preflight refused."""
    return bare(
        state="failed",
        failure_class=FailureClass.USER_ERROR,
        failure="prompt: the source has no column 'compny'; did you mean 'company'?",
        seconds=3.2,
        arguments=ARGUMENTS,
    )


def killed() -> Report:
    """A job whose driver was killed halfway."""
    return bare(
        rows=4_100, errors=20, total=10_000, seconds=240.0, attempts=3, gpu_seconds=480.0, last_run=LAST,
        gpu_seconds_by_type={"H100": 480.0}, course=[_moment(step) for step in range(40)],
        finish_reasons={"stop": 4_100},
        arguments=ARGUMENTS,
    )  # fmt: skip


def nasty() -> Report:
    """Every text of rows, names and places tries to break out."""
    every = " ".join(NASTY)
    failures = [
        FailureGroup(
            step=text, rows=3, reason=text,
            examples=[FailedExample(ordinal=1, id=text, reason=text, request=text, response=text,
                                    row=json.dumps({text: text}))],
        )
        for text in NASTY
    ]  # fmt: skip
    samples = [
        Sample(ordinal=place, id=text, row=text, request=text, response=text, finish_reason=text)
        for place, text in enumerate(NASTY)
    ]
    return changed(
        failures=failures, samples=samples, steps=[StepCounts(name=text) for text in NASTY],
        answers=[Answer(text=text, rows=9) for text in NASTY],
        finish_reasons=dict.fromkeys(NASTY, 3), columns=dict.fromkeys(NASTY, every),
        versions=dict.fromkeys(NASTY, every),
        plan={text: {"value": every, "reason": every} for text in NASTY},
        arguments=dict.fromkeys(NASTY, every), effective_sampling={text: [every] for text in NASTY},
        gpu_seconds_by_type=dict.fromkeys(NASTY, 10.0),
        gpu_hour_price=dict.fromkeys(NASTY, 1.0), currency=every,
        replicas=[ReplicaStats(replica=text, node=text, gpus=[text]) for text in NASTY],
        timing=Timing(phases=dict.fromkeys(NASTY, 1.0), startup_seconds=11.0), uri=every, manifest_uri=every,
        dead_letter_uri=every, format=every, submission_id=every, created_at=every,
        task=TASK.model_copy(update={"task_id": every, "dag_id": every, "run_id": every, "map_index": 3}),
        last_run=LAST.model_copy(update={"created_at": every, "currency": every, "columns": {every: every},
                                         "errors_by_step": {every: 2}, "finish_reasons": {every: 2}}),
    )  # fmt: skip


def huge() -> Report:
    """3,000 columns, answers of a megabyte, and replicas of a large cluster."""
    columns = {f"column_{place:04d}": "string" for place in range(3000)}
    row = json.dumps(dict.fromkeys(columns, "value"))
    samples = [
        Sample(ordinal=place, row=row, request="q" * 1_000_000, response="word " * 200_000)
        for place in range(10)
    ]
    replicas = [ReplicaStats(replica=str(place), node="n", rows=1) for place in range(500)]
    last = LAST.model_copy(update={"columns": {f"other_{place}": "string" for place in range(3000)}})
    return changed(columns=columns, samples=samples, replicas=replicas, last_run=last)


def absurd() -> Report:
    """Numbers beyond what a float holds, and a row of great depth."""
    much = 10**400
    deep = json.dumps({"a": 0}).replace("0", "[" * 900 + "]" * 900)
    return changed(
        rows=much,
        errors=much,
        total=3 * much,
        tokens_paid=much,
        tokens=Tokens(input=much, output=much),
        seconds=1e308,
        cost=1e308,
        gpu_seconds_by_type={"H100": 1e308},
        gpu_hour_price={"H100": 1e308},
        finish_reasons={"stop": much},
        answers=[Answer(text="a", rows=much), Answer(text="b", rows=1)],
        output_tokens=[Bin(first=0, last=much, rows=much), Bin(first=1, last=2, rows=1)],
        course=[Moment(seconds=1e308, rows=much, rows_in_flight=much)],
        samples=[Sample(ordinal=much, row=deep)],
        timing=Timing(phases={"engine": 1e308, "model": 1e308}, output_tokens_per_second=1e308),
    )


GALLERY: dict[str, Callable[[], Report]] = {
    "good": good,
    "first_night": lambda: changed(last_run=None),
    "without_content": lambda: good().without_content(),
    "nothing_known": bare,
    "in_steps": in_steps,
    "refused": refused,
    "killed": killed,
    "no_rows": lambda: bare(state="committed", rows=0, errors=0, total=0, seconds=2.0),
    "all_failed": lambda: changed(rows=0, errors=10_000, answers=None, samples=[], output_tokens=[]),
    "not_finite": lambda: changed(
        cost=math.inf,
        seconds=math.nan,
        gpu_seconds=math.inf,
        course=[
            Moment(seconds=math.nan, tokens_per_second=math.inf),
            Moment(seconds=1e308, tokens_per_second=1e308),
        ],
    ),
    "one_point": lambda: changed(course=[Moment(seconds=3.0, rows=1, tokens_per_second=7.0)]),
    "nasty": nasty,
    "huge": huge,
    "absurd": absurd,
}
"""By name: each makes its report."""
