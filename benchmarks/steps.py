# SPDX-License-Identifier: Apache-2.0
"""What two questions about each row cost as two steps of one job, and in other ways.

Three ways of the same requests with the same tokens, in turn: a job of two steps; two jobs, each with an
engine of its own, where the second reads the dataset of the first; and one job of one question whose rows are
all these requests. The real job on a Ray of this machine. By default with the echo engine, which answers
`--slots` rows at once at a fixed time a token, so that the engine is the limit. Prints a table: seconds of
the whole jobs, and of their engines from their first request to the last answer (the sum of two jobs).

    python benchmarks/steps.py
    python benchmarks/steps.py --engine vllm --rows 96 --slots 16
    python benchmarks/steps.py --engine vllm --model /models/8b --num-gpus 1 --rows 4000 --slots 1024

With `--nights`, four nights of a draft and its judge with one `reuse` folder instead: what each step asks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

SEED = 20261128
ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "dags_examples/demo_model/model"
DRAFT, JUDGE = "{row.text}", "{row.question} {row.draft_finish_reason}"


class Took(NamedTuple):
    """Seconds of whole jobs, and of their engines from the first request to the last answer."""

    whole: float
    generating: float


@dataclass
class Jobs:
    """Jobs on rows in a folder.

    :param lengths: words of each row's first request, and of its second.
    """

    folder: Path
    options: argparse.Namespace
    lengths: list[tuple[int, int]]
    jobs: int = 0

    def steps(self) -> Took:
        """One job of two steps."""
        rows = {"text": self._texts(0), "question": self._texts(1)}
        steps = [{"name": "draft", "prompt": DRAFT}, {"name": "judge", "prompt": JUDGE}]
        return self._run(rows, steps=steps)[0]

    def two_jobs(self) -> Took:
        """A job for each question."""
        rows = {"text": self._texts(0), "question": self._texts(1)}
        first, manifest = self._run(
            rows, prompt=DRAFT, output_prefix="draft_", response_column="draft_response"
        )
        second, _ = self._run(manifest["uri"], prompt=JUDGE)
        return Took(first.whole + second.whole, first.generating + second.generating)

    def one_question(self) -> Took:
        """One job whose rows are the requests of both steps."""
        ended = "length" if self.options.engine == "vllm" else "stop"
        texts = [*self._texts(0), *(f"{text} {ended}" for text in self._texts(1))]
        return self._run({"text": texts}, prompt=DRAFT)[0]

    def nights(self) -> str:
        """Four nights: new, a tenth of the rows changed, another prompt of the judge, nothing changed."""
        rows = {"text": self._texts(0), "question": self._texts(1)}
        tenth = len(rows["text"]) // 10
        changed = rows | {"text": [f"now {text}" for text in rows["text"][:tenth]] + rows["text"][tenth:]}
        judge_of = "{row.question} {row.draft_response}"
        other = f"Again: {judge_of}"
        lines = ["| night | drafts asked | judgements asked | tokens paid | whole, s |"]
        lines.append("|---|---:|---:|---:|---:|")
        for name, some, judge in (
            ("first", rows, judge_of),
            ("a tenth of the rows changed", changed, judge_of),
            ("another prompt of the judge", changed, other),
            ("nothing changed", changed, other),
        ):
            steps = [{"name": "draft", "prompt": DRAFT}, {"name": "judge", "prompt": judge}]
            took, manifest = self._run(
                some, steps=steps, deduplicate=True, reuse=str(self.folder / "answers")
            )
            asked = [
                step["asked"] - step["resumed"] - step["reused"] - step["duplicates"]
                for step in manifest["steps"]
            ]
            paid = manifest["tokens_paid"]
            lines.append(f"| {name} | {asked[0]:,} | {asked[1]:,} | {paid:,} | {took.whole:.1f} |")
        return "\n".join(lines)

    def _texts(self, step: int) -> list[str]:
        # Each begins in its own way, so that no way of asking finds more in the prefix cache.
        return [f"{step} {number} " + "word " * (each[step] - 2) for number, each in enumerate(self.lengths)]

    def _run(self, rows: dict[str, list[str]] | str, **asked: Any) -> tuple[Took, dict[str, Any]]:
        """What the job took, and its manifest."""
        from airflow_provider_raybatch.contract.base import parse
        from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
        from airflow_provider_raybatch.job.phases.driver import run as run_job

        self.jobs += 1
        place = self.folder / str(self.jobs)
        place.mkdir()
        if not isinstance(rows, str):
            pq.write_table(pa.table(rows), place / "in.parquet", row_group_size=1000)
            rows = str(place / "in.parquet")
        document = {
            "source": [rows],
            "deduplicate": False,
            **asked,
            **self._engine(),
            "num_cpus": 1,
            "destination": str(place / "out"),
            "submission": {
                "task": {"dag_id": "benchmark", "run_id": f"r{self.jobs}", "task_id": "steps"},
                "run_token": "token",
                "submission_id": f"raybatch-steps-{self.jobs}",
            },
        }
        spec = parse(BatchInferenceSpec, json.dumps(document))
        assert spec.submission is not None
        began = time.time()
        summary = run_job(spec, spec.submission, lambda event: None)
        seconds = time.time() - began
        manifest = json.loads(Path(summary.manifest_uri).read_text())
        assert manifest["counts"]["error"] == 0
        ended = max((replica["ended_seconds"] for replica in manifest["replicas"]), default=0.0)
        return Took(seconds, ended), manifest

    def _engine(self) -> dict[str, Any]:
        options = self.options
        if options.engine == "vllm":
            cpu = {"enforce_eager": True, "dtype": "float32"}
            arguments = {"max_num_seqs": options.slots, **(cpu if not options.num_gpus else {})}
            return {
                "engine": "vllm",
                "model": str(options.model),
                "engine_args": {**arguments, **options.engine_args},
                "num_gpus": options.num_gpus or None,
                "sampling": {"temperature": 0, "ignore_eos": True, "max_tokens": options.tokens},
            }
        arguments = {
            "seconds_per_token": options.seconds_per_token,
            "max_num_seqs": options.slots,
            "startup_seconds": options.startup,
        }
        return {"engine": "echo", "model": "echo", "engine_args": arguments, "sampling": {"temperature": 0}}


def main() -> None:
    options = arguments()
    import ray

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=options.num_gpus,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    pick = random.Random(SEED)

    def words(mean: float) -> int:
        return min(int(4 * mean), max(3, int(pick.lognormvariate(0, 0.5) * mean)))

    lengths = [(words(options.draft), words(options.judge)) for _ in range(options.rows)]
    found: dict[str, list[Took]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        jobs = Jobs(Path(folder), options, lengths)
        if options.nights:
            print(jobs.nights())
            return
        ways: list[tuple[str, Callable[[], Took]]] = [
            ("one job of two steps", jobs.steps),
            ("two jobs", jobs.two_jobs),
            ("one job, one question, twice the rows", jobs.one_question),
        ]
        ways[0][1]()  # the first job of a Ray also starts its workers
        for _ in range(options.rounds):
            for name, way in ways:
                found.setdefault(name, []).append(way())
    ray.shutdown()
    print(table(found))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["echo", "vllm"], default="echo")
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of vLLM's model")
    parser.add_argument("--engine-args", type=json.loads, default={}, help="more of vLLM's, as JSON")
    parser.add_argument("--num-gpus", type=int, default=0)
    parser.add_argument("--rows", type=int, default=800)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--nights", action="store_true", help="nights of a draft and its judge instead")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--draft", type=float, default=30.0, help="median words of a first request")
    parser.add_argument("--judge", type=float, default=15.0, help="median words of a second request")
    parser.add_argument("--tokens", type=int, default=48, help="of each response of vLLM")
    parser.add_argument("--seconds-per-token", type=float, default=0.01)
    parser.add_argument("--startup", type=float, default=25.0, help="seconds in which an echo engine starts")
    return parser.parse_args()


def table(found: dict[str, list[Took]]) -> str:
    """A row for each way: medians, and the steps' seconds as a part of its own."""
    medians = {
        name: Took(*(statistics.median(each) for each in zip(*took, strict=True)))
        for name, took in found.items()
    }
    steps = next(iter(medians.values()))
    lines = ["| way | whole, s | steps to it | generating, s | steps to it |", "|---|---:|---:|---:|---:|"]
    for name, took in medians.items():
        ratios = [mine / theirs for mine, theirs in zip(steps, took, strict=True)]
        lines.append(
            f"| {name} | {took.whole:.1f} | {ratios[0]:.2f} | {took.generating:.1f} | {ratios[1]:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
