# SPDX-License-Identifier: Apache-2.0
"""What the report costs a job, as a share of its wall time; and jobs beside another version's, in turns.

The real job runs with the echo engine, which answers at once, on a Ray of this machine: any model makes the
job longer, and the share smaller. The share is the time inside of what only a report needs, in the driver and
in the tasks that publish; calls at the same time on several cores count one after the other. A job of a
checkout without reports says what the whole costs, as far as the machine's noise lets it.

    python benchmarks/report_cost.py > benchmarks/results/report_cost.md
    python benchmarks/report_cost.py --other CHECKOUT    # and in turns with that version
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TURNS = 3
TIMED = (
    "output.tally:tally_of",
    "output.tally:Tally.add",
    "output.record:Recorder.begin",
    "output.record:Recorder.observe",
    "output.record:Recorder.end",
    "output.run_reports:RunReports.begin",
    "output.run_reports:RunReports.attempts",
    "output.run_reports:RunReports.committed",
    "output.report:DatasetReport.__call__",
    "output.manifest_copy:renew_report_copies",
)
"""What only a report needs, below the package's ``job``."""
TEXT = "The company of row {} makes harbors, lanterns, orchards, copper, meadows and quartz for a living."
CASES: dict[str, dict[str, Any]] = {
    "100,000 rows": {"rows": 100_000},
    "400,000 rows": {"rows": 400_000},
    "400,000 rows, few answers": {"rows": 400_000, "answers": 5},
    "50,000 rows of 100 columns": {"rows": 50_000, "columns": 99},
    "3,000 rows of 3,000 columns": {"rows": 3_000, "columns": 2_999},
    "100,000 rows, a tenth fails": {"rows": 100_000, "fails": 10},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", help="a checkout of another version")
    parser.add_argument("--case", help="run one job in this process")
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--turns", type=int, default=TURNS)
    given = parser.parse_args()
    if given.case:
        print("JOB", json.dumps(job(**CASES[given.case])))
        return
    lines = [line(case, given.other, given.turns) for case in given.only]
    heads = ["job", "seconds", "the report's", "share"] + (
        ["other's seconds", "ratio"] if given.other else []
    )
    print(table(heads, lines, given.turns, given.other))


def table(heads: list[str], lines: list[list[str]], turns: int, other: str | None) -> str:
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines]
    beside = (
        "The ratio is that of seconds, of this version to one without reports, in turns.\n" if other else ""
    )
    runs = "One job each" if turns == 1 else f"Medians of {turns} jobs, and the largest share,"
    return "\n".join([
        "# What the report costs a job",
        "",
        f"{runs} with the echo engine, which answers at once; one replica, local disk.",
        f"{beside}{os.cpu_count()} CPU cores, shared with other work. Python {platform.python_version()}.",
        "Made by `python benchmarks/report_cost.py`.",
        "",
        *("| " + " | ".join(row) + " |" for row in rows),
    ])  # fmt: skip


def line(case: str, other: str | None, turns: int) -> list[str]:
    """A case's line of the table."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    places = {"this": str(ROOT), **({"other": other} if other else {})}
    for turn in range(turns):
        # The one that begins changes, since a machine's speed drifts.
        for which in sorted(places, reverse=bool(turn % 2)):
            run = measured(case, places[which])
            # A name that has changed would be measured as nothing.
            assert which == "other" or not run["missing"], run["missing"]
            runs[which].append(run)
            print(which, json.dumps({"case": case, **run}), file=sys.stderr, flush=True)
    seconds = {which: statistics.median(run["seconds"] for run in found) for which, found in runs.items()}
    own = statistics.median(run["own"] for run in runs["this"])
    share = max(run["own"] / run["seconds"] for run in runs["this"])
    cells = [case, f"{seconds['this']:.1f}", f"{own:.3f}", f"{share:.2%}"]
    if other:
        cells += [f"{seconds['other']:.1f}", f"{seconds['this'] / seconds['other']:.3f}"]
    return cells


def measured(case: str, root: str) -> dict[str, Any]:
    """One job in a fresh process, with the package of a checkout."""
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, __file__, "--case", case],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (found,) = (text for text in done.stdout.splitlines() if text.startswith("JOB "))
    run: dict[str, Any] = json.loads(found.removeprefix("JOB "))
    return run


def job(rows: int, columns: int = 0, fails: int = 0, answers: int = 0) -> dict[str, Any]:
    """Run a job, and return its seconds and those of the report.

    :param columns: besides the text.
    :param fails: each so manieth row fails.
    :param answers: how many different ones there are; 0 for one a row.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = Path(made)
        os.environ["RAYBATCH_BENCHMARK_OWN"] = made
        write(folder / "in.parquet", rows, columns, fails, answers)
        time_calls()
        import ray

        os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
        # The workers' processes measure what they do, too.
        hook = {"worker_process_setup_hook": time_calls}
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
            logging_level="error", runtime_env=hook,
        )  # fmt: skip
        began = time.monotonic()
        manifest = run(folder, rows)
        seconds = time.monotonic() - began
        ray.shutdown()
        own: dict[str, float] = defaultdict(float)
        for file in folder.glob("*.own"):
            for name, spent in json.loads(file.read_text()).items():
                own[name] += spent
    assert manifest["counts"]["input"] == rows
    timing: dict[str, Any] = {
        name: manifest["timing"][name] for name in ("generation_seconds", "commit_seconds")
    }
    timing["missing"] = [name for name in TIMED if place_of(name) is None]
    return {"seconds": seconds, "own": sum(own.values()), "by_call": dict(own), **timing}


def write(path: Path, rows: int, columns: int, fails: int, answers: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def text(number: int) -> str:
        begin = "[fails] " if fails and number % fails == 0 else ""
        return begin + TEXT.format(number % answers if answers else number)

    names = {f"column_{number}": [f"{number} of {row}" for row in range(rows)] for number in range(columns)}
    pq.write_table(pa.table({"text": [text(number) for number in range(rows)], **names}), path)


def run(folder: Path, rows: int) -> dict[str, Any]:
    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.driver import run as run_job

    document = {
        "source": [str(folder / "in.parquet")],
        "prompt": "What industry is this company in: {row.text}",
        "model": "echo",
        "sampling": {"temperature": 0, "max_tokens": 8},
        "engine": "echo",
        "engine_args": {"fail_pattern": "[fails]"},
        "max_error_fraction": 0.5,
        "deduplicate": False,
        "replicas": 1,
        "num_cpus": 1,
        "destination": str(folder / "out"),
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "rows"},
            "run_token": "token",
            "submission_id": "raybatch-rows-0",
        },
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    assert spec.submission is not None
    summary = run_job(spec, spec.submission, lambda event: None)
    found: dict[str, Any] = json.loads(Path(summary.manifest_uri).read_text())
    return found


def time_calls() -> None:
    """Let this process measure the calls of `TIMED`, as far as its package has them."""
    file = Path(os.environ["RAYBATCH_BENCHMARK_OWN"]) / f"{os.getpid()}.own"
    spent: dict[str, float] = defaultdict(float)
    inside: list[str] = []

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if inside:  # of another one that is measured
                return function(*args, **options)
            inside.append(name)
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                inside.pop()
                spent[name] += time.perf_counter() - began
                file.write_text(json.dumps(spent))

        return call

    for name in TIMED:
        if (found := place_of(name)) is not None:
            setattr(*found, timed(name, getattr(*found)))


def place_of(name: str) -> tuple[Any, str] | None:
    """Where one of `TIMED` is; ``None`` in a version without it."""
    module, _, path = name.partition(":")
    try:
        holder: Any = importlib.import_module(f"airflow_provider_raybatch.job.{module}")
    except ModuleNotFoundError:
        return None
    owner, _, last = path.rpartition(".")
    if owner:
        holder = getattr(holder, owner)
    return (holder, last) if hasattr(holder, last) else None


if __name__ == "__main__":
    main()
