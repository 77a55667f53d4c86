# SPDX-License-Identifier: Apache-2.0
"""The verbs `preview` and `plan`, over a fake Jobs API."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.log import mask_secret

from airflow_provider_raybatch.cli.definition import main
from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.layout import REQUEST_FILE
from airflow_provider_raybatch.contract.preview import (
    CutOff,
    PlanReport,
    Preview,
    PreviewRow,
    PromptTokens,
    RowAnswer,
    ShownCompletion,
    ShownMessage,
    Size,
)
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.fake_ray import FakeRay, Script
from tests.support.whole_job import attempt, numbered, without_cluster

OF_STEPS = ("--source", "/in.jsonl", "--model", "m", "--argument")
OPTIONS = ("--source", "/in.jsonl", "--prompt", "Say {row.a}", "--model", "m", "--destination", "/out")
ROWS = (
    PreviewRow(
        ordinal=0,
        row_id="x",
        messages=(ShownMessage(role="user", text="Say [bold]a[/bold] :smile:"),),
        tokens=7,
        key="0123456789abcdef" * 2,
        answered="response store",
    ),
    PreviewRow(ordinal=5, tokens=90, failure="tokenize: too long", same_as=0),
)
REPORT = PlanReport(
    rows=1200,
    files=2,
    bytes=5_000_000,
    remaining=1000,
    refusals=("destination: it belongs to another task.",),
    prompt_tokens=PromptTokens(
        rows=1200,
        failed=1,
        total=99_000,
        p50=80,
        p95=300,
        p99=900,
        longest=4000,
        context=8192,
        max_tokens=16,
        cut_offs=(CutOff(max_model_len=1024, failed=11, shortened=3),),
    ),
    sizes=(Size(name="replicas", value="4", reason="the cluster's nodes hold 4"),),
)


def reporting(ray: FakeRay, *reported: events.Event) -> None:
    def script(ray: FakeRay, body: dict[str, Any]) -> Script:
        return Script(lines=[ray.line(body, event, number) for number, event in enumerate(reported)])

    ray.script = script


def printed(capsys: pytest.CaptureFixture[str], *words: str, steps: str | None = None) -> str:
    """What is shown of a task; of steps, if they are given, in place of a prompt."""
    main([*words, *(OPTIONS if steps is None else (*OF_STEPS, f"steps={steps}"))])
    return capsys.readouterr().out


def preview_of(ray: FakeRay) -> None:
    rows = [events.RowPreviewed(row=row) for row in ROWS]
    end = Preview(rows=6, rows_shown=2, refusals=("id_column: no.",), notices=("not tried",))
    reporting(ray, *rows, events.Previewed(preview=end))


def test_rows_are_shown_as_text(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    """No row's text is taken for markup."""
    preview_of(ray)
    lines = [line.rstrip() for line in printed(capsys, "preview").splitlines()]
    assert lines == [
        "the options: the first 2 of 6 rows",
        "",
        "row 0 | id x | 7 tokens | key 0123456789abcdef | answered by the response store",
        "  user: Say [bold]a[/bold] :smile:",
        "",
        "row 5 | 90 tokens | asks what row 0 asks | FAILS in step tokenize: too long",
        "",
        "The job would be refused:",
        " - id_column: no.",
        "",
        "To know:",
        " - not tried",
    ]


SKIPS = "step mend does not ask this row (when, on_blank)"
STEPS = json.dumps([
    {"name": "draft", "prompt": "Say {row.a}", "when": [["a", "!=", "x"]], "sampling": {"seed": 1}},
    {"name": "judge", "prompt": "Judge {row.draft_response}"},
])  # fmt: skip


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (("preview",), "later ones read its answers, and are shown with --ask."),
        (("preview", "--ask"), "later ones read its answers, and are shown with them."),
    ],
)
def test_what_is_shown_of_steps_is_said(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], others: str
) -> None:
    reporting(ray, events.Previewed(preview=Preview(rows=6, rows_shown=0)))
    text = " ".join(printed(capsys, *words, steps=STEPS).split())
    assert f"steps: prompts and tokens are those of step 'draft', the first of 2; {others}" in text
    (job,) = ray.jobs.values()
    assert [step["name"] for step in ray.spec(job.body)["steps"]] == ["draft", "judge"]


def test_answers_of_steps_are_shown_in_their_order(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(step: str, **fields: Any) -> events.RowAnswered:
        said = (ShownCompletion(text=f"{step}s", finish_reason="stop", output_tokens=1),)
        return events.RowAnswered(answer=RowAnswer(ordinal=0, step=step, completions=said, **fields))

    judged = (ShownMessage(role="user", text="Judge drafts"),)
    told = [answer("draft"), answer("judge", messages=judged, columns='{"judge_score": 4}')]
    end = events.Previewed(preview=Preview(rows=90, rows_shown=1))
    reporting(ray, events.RowPreviewed(row=ROWS[0]), *told, end)
    draft, judge = json.loads(STEPS)
    steps = json.dumps([draft, {"name": "mend", "prompt": "Mend {row.a}"}, judge])
    lines = [line.rstrip() for line in printed(capsys, "preview", "--ask", steps=steps).splitlines()]
    assert lines[2:11] == [
        "row 0 | id x | 7 tokens | key 0123456789abcdef | answered by the response store",
        "  user: Say [bold]a[/bold] :smile:",
        "  step draft",
        "  answer (stop, 1 token): drafts",
        "  step mend does not ask this row (when, on_blank)",
        "  step judge",
        "  user: Judge drafts",
        "  answer (stop, 1 token): judges",
        '  columns: {"judge_score": 4}',
    ]
    (row,) = json.loads(printed(capsys, "preview", "--ask", "--json", steps=steps))["shown"]
    assert [one["step"] for one in row["answers"]] == ["draft", "judge"]
    assert row["answers"][1]["messages"] == [{"role": "user", "text": "Judge drafts"}]


ANSWERS = (
    RowAnswer(
        ordinal=0,
        completions=(ShownCompletion(text='{"n": "red"}', finish_reason="stop", output_tokens=4),),
        columns='{"n": "red"}',
    ),
    RowAnswer(
        ordinal=5,
        completions=(ShownCompletion(text="sesame opens", finish_reason="length", output_tokens=1),),
        failure="length: the response was cut off after 1 token",
    ),
)


def answers_of(ray: FakeRay, rows: int = 2) -> None:
    shown = [events.RowPreviewed(row=row) for row in (ROWS[0], PreviewRow(ordinal=5, tokens=9))]
    starting = events.Phase(phase="starting", message="one must start")
    answered = [events.RowAnswered(answer=answer) for answer in ANSWERS]
    end = events.Previewed(preview=Preview(rows=90, rows_shown=rows))
    reporting(ray, *shown, starting, *answered, end)


def test_answers_are_shown_below_their_rows(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    """What Airflow knows as a secret is masked, also where a model repeats it."""
    answers_of(ray)
    mask_secret("sesame")
    main(["preview", "--ask", *OPTIONS])
    out, err = capsys.readouterr()
    assert [line.rstrip() for line in out.splitlines()][2:] == [
        "row 0 | id x | 7 tokens | key 0123456789abcdef | answered by the response store",
        "  user: Say [bold]a[/bold] :smile:",
        '  answer (stop, 4 tokens): {"n": "red"}',
        '  columns: {"n": "red"}',
        "",
        "row 5 | 9 tokens",
        "  answer (length, 1 token): *** opens",
        "  would be a dead letter: length: the response was cut off after 1 token",
    ]
    began, submitting, *phases = err.splitlines()
    assert began == "ask: answers may take 600 s, then it gives up (--timeout)"
    assert submitting == f"submitting job {next(iter(ray.jobs))} to {ray.url}"
    assert phases == ["one must start"]


@pytest.mark.parametrize(
    ("words", "asked", "noted"),
    [
        ((), 0, False),
        (("--ask",), 10, False),
        (("--ask", "1"), 1, False),
        (("--ask", "--rows", "30"), 20, True),
    ],
)
def test_at_most_twenty_rows_are_asked(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], asked: int, noted: bool
) -> None:
    answers_of(ray, rows=30 if noted else 2)
    document = json.loads(printed(capsys, "preview", "--json", *words))
    (job,) = ray.jobs.values()
    name = job.body["runtime_env"]["working_dir"].removeprefix("gcs://")
    with zipfile.ZipFile(io.BytesIO(ray.packages[name])) as archive:
        assert json.loads(archive.read(REQUEST_FILE))["ask"] == asked
    assert any("the first 20 of these" in note for note in document["notes"]) is noted
    assert document["shown"][1]["answer"]["failure"].startswith("length: ")


def test_ray_data_llm_is_not_asked(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["preview", "--ask", *OPTIONS, "--engine", "ray_data_llm"])
    assert capsys.readouterr().err.splitlines()[-1].startswith("ask: engine 'ray_data_llm' is a pipeline")
    assert not ray.jobs


def test_sizes_are_shown_with_reasons(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    reporting(ray, events.Planned(report=REPORT))
    text = printed(capsys, "plan")
    cells = [re.split(" {2,}", line.strip()) for line in text.splitlines()]
    assert text.startswith("the options: 1,200 rows, 1,000 left to ask in 2 files of 5.0 MB\n")
    assert ["80", "300", "900", "4,000", "99,000", "8,192"] in cells
    assert ["1,024", "11", "3"] in cells
    assert ["replicas", "4", "the cluster's nodes hold 4"] in cells
    assert " - destination: it belongs to another task." in [line.rstrip() for line in text.splitlines()]


def test_tokens_of_all_steps_are_shown(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    later = {"judge": PromptTokens(rows=1200, total=7_777, p50=6)}
    reporting(ray, events.Planned(report=REPORT.model_copy(update={"later_steps": later})))
    text = " ".join(printed(capsys, "plan", steps=STEPS).split())
    assert "Tokens of prompts of step judge, over all 1,200 rows" in text
    assert "7,777" in text
    assert (
        "steps: an answer that a prompt reads counts as one token, and what `each` asks about once." in text
    )


@pytest.mark.parametrize(
    ("run", "cost", "changed", "shown"),
    [
        ("night-1", 3.0, [], "at the rates of the last run, r1: 8 min 30 s and 300.00 EUR"),
        ("night-2", None, [], "at the rates of the last run, r1: 8 min 30 s"),
        (
            "night-1",
            3.0,
            ["model", "engine_args"],
            "not valued: the last run, r1, had another model and engine_args, so its rates do not apply",
        ),
        (
            "night-1",
            None,
            ["sampling"],
            "not valued: the last run, r1, had another sampling, so its rates do not apply",
        ),
        (None, None, None, None),
    ],
)
def test_time_and_money_are_those_of_the_last_run(
    ray: FakeRay,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: str | None,
    cost: float | None,
    changed: list[str] | None,
    shown: str | None,
) -> None:
    """At the task's destination or, where each run has one of its own, beside it."""
    if run is not None:
        without_cluster(monkeypatch)
        other = {"model": "older", "engine_args": {"max_model_len": 4096}, "sampling": {"max_tokens": 3}}
        had = {"model": "m", **{name: other[name] for name in changed or ()}}
        attempt(LocalFolder(str(tmp_path / "out/night-1")), 1, numbered(tmp_path / "in.jsonl", 10), **had)
        (file,) = (tmp_path / "out/night-1/manifests").glob("*.json")
        for path in (file, tmp_path / "out/night-1/manifest.json"):
            manifest = json.loads(path.read_bytes())
            manifest |= {"cost": cost, "currency": "EUR"}
            manifest["counts"]["resumed"] = 8  # of an earlier attempt, whose cost is in the run's
            manifest["timing"] |= {"rows_per_second": 2.0, "startup_seconds": 10.0}
            path.write_text(json.dumps(manifest))
    reporting(ray, events.Planned(report=REPORT))
    options = (*OPTIONS[:-1], str(tmp_path / f"out/{run}"), "--engine", "echo")
    main(["plan", *options])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    valued = [line for line in lines if "last run" in line]
    assert valued == ([] if shown is None else [f"1,000 rows left, {shown}"])
    main(["plan", "--json", *options])
    last = json.loads(capsys.readouterr().out)["as_last_run"]
    values = {"seconds": None, "cost": None} if changed else {"seconds": 510.0, "cost": cost and 300.0}
    assert last == (shown and {"run": "r1", "currency": "EUR", "changed": changed, **values})


def test_a_destination_below_the_root_has_no_last_run_here(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cluster(monkeypatch)
    attempt(LocalFolder(str(tmp_path / "other")), 1, numbered(tmp_path / "in.jsonl", 10))
    monkeypatch.chdir(tmp_path)
    reporting(ray, events.Planned(report=REPORT))
    main(["plan", "--json", *OPTIONS[:-1], "/no-such-folder"])
    assert json.loads(capsys.readouterr().out)["as_last_run"] is None


def test_json_has_it_all(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    preview_of(ray)
    document = json.loads(printed(capsys, "preview", "--json"))
    assert [row["ordinal"] for row in document["shown"]] == [0, 5]
    assert document["refusals"] == ["id_column: no."]
    reporting(ray, events.Planned(report=REPORT))
    assert json.loads(printed(capsys, "plan", "--json"))["prompt_tokens"]["p99"] == 900


def test_long_sentences_are_indented(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    """What people copy has no spaces at the ends of lines."""
    sentence = "one of many words " * 20
    row = PreviewRow(ordinal=0, messages=(ShownMessage(role="user", text=sentence),))
    end = Preview(rows=1, rows_shown=1, refusals=(sentence,))
    reporting(ray, events.RowPreviewed(row=row), events.Previewed(preview=end))
    lines = printed(capsys, "preview").splitlines()
    assert lines == [line.rstrip() for line in lines]
    of_sentence = lines[lines.index("The job would be refused:") + 1 :]
    assert [line[:3] for line in of_sentence] == [" - ", "   ", "   ", "   "]


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_plan_steers_no_terminal(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    """A cluster may name a GPU, and a file a column, as it likes."""
    odd = "pay\u202egpj.exe\x9b31m"
    size = REPORT.sizes[0].model_copy(update={"reason": odd})
    reporting(ray, events.Planned(report=REPORT.model_copy(update={"sizes": (size,), "notices": (odd,)})))
    shown = printed(capsys, "plan", *form)
    assert shown.count("pay") == 2
    assert not set(shown) & set("\u202e\x9b\x1b")


@pytest.mark.parametrize("words", [("preview",), ("preview", "--json"), ("plan",), ("plan", "--json")])
def test_secrets_of_templates_are_masked(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """A prompt may have taken the password of a connection."""
    mask_secret("the-password-of-the-lake")
    text = "Key the-password-of-the-lake: a"
    row = PreviewRow(ordinal=0, tokens=7, messages=(ShownMessage(role="user", text=text),))
    end = Preview(rows=1, rows_shown=1, refusals=(text,))
    report = REPORT.model_copy(update={"notices": (text,)})
    told: list[events.Event] = [events.Planned(report=report)]
    if words[0] == "preview":
        told = [events.RowPreviewed(row=row), events.Previewed(preview=end)]
    reporting(ray, *told)
    shown = printed(capsys, *words)
    assert "Key ***: a" in shown
    assert "the-password" not in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("preview", "--rows", "101"), "rows: it must be at most 100, but it is 101."),
        (("preview", "--rows", "0"), "rows: it must be at least 1, but it is 0."),
        (("preview", "--ask", "21"), "ask: it must be at most 20, but it is 21."),
        (("preview", "--timeout", "0"), "timeout: it must be more than 0 seconds, but it is 0."),
        (("plan", "--timeout", "nan"), "timeout: it must be more than 0 seconds, but it is nan."),
    ],
)
def test_wrong_numbers_are_refused(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(SystemExit, match="1"):
        main([*words, *OPTIONS])
    assert capsys.readouterr().err.strip() == sentence
    assert not ray.jobs


@pytest.mark.parametrize(
    ("names", "told", "shown"),
    [
        (["draft"], ["draft"], ["step draft", "answer"]),
        (["a", "mend", "c", "end"], ["a", "c!"], ["step a", "answer", SKIPS, "step c", "would"]),
        (["mend", "judge"], ["judge"], [SKIPS, "step judge", "answer"]),
    ],
    ids=["one-step", "nothing-after-a-failure", "not-the-first"],
)  # fmt: skip
def test_steps_that_do_not_ask_a_row_are_named(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], names: list[str], told: list[str], shown: list[str]
) -> None:
    said = (ShownCompletion(text="yes", finish_reason="stop", output_tokens=1),)
    answered = [
        events.RowAnswered(
            answer=RowAnswer(ordinal=0, step=step[:-1], failure=f"{step[:-1]}.engine: no")
            if step.endswith("!")
            else RowAnswer(ordinal=0, step=step, completions=said)
        )
        for step in told
    ]
    row = PreviewRow(ordinal=0, is_skipped=told == ["judge"])
    end = events.Previewed(preview=Preview(rows=9, rows_shown=1))
    reporting(ray, events.RowPreviewed(row=row), *answered, end)
    steps = json.dumps([{"name": name, "prompt": f"{name} {{row.a}}"} for name in names])
    lines = [line.strip() for line in printed(capsys, "preview", "--ask", steps=steps).splitlines()]
    of_row = lines[lines.index("row 0") + 1 :]
    of_row = of_row[: of_row.index("")] if "" in of_row else of_row
    assert [line[: len(one)] for line, one in zip(of_row, shown, strict=True)] == shown


def test_a_row_that_the_first_step_leaves_out_is_told(
    ray: FakeRay, capsys: pytest.CaptureFixture[str]
) -> None:
    end = events.Previewed(preview=Preview(rows=9, rows_shown=1))
    reporting(ray, events.RowPreviewed(row=PreviewRow(ordinal=0, is_skipped=True)), end)
    line = "  step draft does not ask this row (when, on_blank)"
    assert line in printed(capsys, "preview", steps=STEPS).splitlines()
    assert "  not asked (on_blank)" in printed(capsys, "preview").splitlines()
