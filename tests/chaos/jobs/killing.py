# SPDX-License-Identifier: Apache-2.0
"""One task: attempts of a whole job in processes of their own, kills at random instants, and what is left.

A job may ask again what a killed engine had asked and not written (*in flight*). All else is a flaw: a lost,
doubled or wrong row; a request whose answer a part held when the attempt began (*late*), of no row
(*foreign*), or asked more often than rows need (*unexplained*); an internal error; and a task that never ends
(*stuck*).
"""

from __future__ import annotations

import io
import json
import multiprocessing
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import ray

from airflow_provider_raybatch.job.failures.diagnosis import diagnose
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.integration.end_to_end.waiting import wait_for
from tests.support import whole_job
from tests.support.engine_log import engines
from tests.support.ray_processes import coordinators
from tests.support.reading import as_jsonl

from ..counting import living
from ..places import Disk, contents, phase, published
from .workload import BAD, KINDS, NAMES, work

VICTIMS = ("replica", "coordinator", "driver")
"""On a real Ray; otherwise a job is one process."""
ZEROS = ("stuck", "lost", "duplicated", "wrong", "late", "unexplained", "foreign")
_MOST = 3
"""Attempts without a kill until a task counts as stuck."""
_LONGEST = 180.0
_PROCESS = re.compile(r"-(\d+)-[0-9a-f]{8}-\d{6}\.[^/]*\.parquet$")
_ADAPTER = re.compile(rf"^\[(?:{'|'.join(NAMES)})\] ")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def attempt(root: str, number: int, fields: dict[str, Any], cluster: str | None = None) -> None:
    """Run the job of a submission; if it fails, leave class and sentence in a file that is named after it.

    :param cluster: address of a Ray; by default the job has no cluster.
    """
    with pytest.MonkeyPatch.context() as patch:
        try:
            if cluster is None:
                whole_job.without_cluster(patch)
            else:
                ray.init(address=cluster, log_to_driver=False, logging_level="error")
            whole_job.attempt(LocalFolder(f"{root}/out"), number, f"{root}/in.jsonl", **fields)
        except Exception as error:
            failure, sentence = diagnose(error)
            Path(root, f"{number}.json").write_text(f"{failure.value}: {sentence}")


class Task:
    """A task with a folder of its own; see :func:`attempt` for `cluster`.

    :ivar began: epoch seconds by submission.
    :ivar lost: submissions and process ids of killed engines; without an id for all of a submission.
    :ivar failures: of attempts in which nothing was killed.
    """

    def __init__(self, seed: int, kind: str, root: Path, cluster: str | None = None) -> None:
        self.work, self.root, self._cluster = work(kind, seed, root), root, cluster
        self.out, self.log = Disk(root / "out"), root / "requests"
        self.began: dict[str, float] = {}
        self.lost: set[tuple[str, int | None]] = set()
        self.hits: list[tuple[str, str]] = []
        self.failures: list[str] = []
        (root / "in.jsonl").write_bytes(as_jsonl(self.work.rows))

    def attempt(self, victim: str = "", kill_at: float = 0.0, change_at: float = 0.0) -> bool:
        """Run an attempt; kill and change so many seconds after its start. Returns whether it succeeded."""
        number, hits = len(self.began), len(self.hits)
        fields = {**self.work.fields, **({"replicas": 2} if self._cluster else {})}
        job = _CONTEXT.Process(target=attempt, args=(str(self.root), number, fields, self._cluster))
        self.began[f"raybatch-x-{number}"] = time.time()
        job.start()
        began = time.monotonic()
        deeds = [(kill_at, lambda: self._kill(job, victim)), (change_at, self.work.change)] if victim else []
        for at, deed in sorted(deeds, key=lambda one: one[0]):
            job.join(max(0.0, began + at - time.monotonic()))
            deed()
        job.join(_LONGEST)
        end = self.root / f"{number}.json"
        if job.exitcode == 0 and not end.exists():
            return True
        if len(self.hits) == hits:
            said = end.read_text() if end.exists() else f"internal: exit code {job.exitcode}"
            self.failures.append(said.partition(";")[0])
        job.kill()
        wait_for("the end of its engines", lambda: not living(self.log), _LONGEST)
        return False

    def _kill(self, job: BaseProcess, victim: str) -> None:
        found: list[int] = []
        while job.is_alive() and not found:
            if victim == "coordinator":
                found = [process.pid for process in coordinators()]
            else:
                found = living(self.log) if victim == "replica" else [job.pid or 0]
        with suppress(psutil.NoSuchProcess, IndexError):
            psutil.Process(found[0]).kill()
            if victim in {"job", "driver"}:
                job.join()
            if job.exitcode != 0:  # else it had ended
                self.lost.add(([*self.began][-1], found[0] if victim == "replica" else None))
                self.hits.append((victim, phase(self.out)))

    def rows(self) -> dict[str, int]:
        """Compare the dataset and the dead letters with the input."""
        there, rows = published(self.out), self.work.rows
        letters = contents(self.out, f"dead_letter/{Path(there.uri or '-').name}/").values()
        ends = [(row["id"], _texts(row)) for row in there.rows]
        ends += [(int(json.loads(line)["id"]), set()) for one in letters for line in one.splitlines()]
        ids = Counter(row for row, _ in ends)
        return {
            "rows": len(rows),
            "dead_letters": len(ends) - len(there.rows),
            "lost": len(rows) - len(ids),
            "duplicated": len(ends) - len(ids),
            "wrong": sum(texts not in self.work.right(rows[row]) for row, texts in ends),
        }

    def requests(self) -> dict[str, int]:
        """Compare the engines' log with the requests that the rows need, and with the parts."""
        own = [None if self.work.shares(row) else row["id"] for row in self.work.rows]
        outcomes = [(row["id"], texts) for row in self.work.rows for texts in self.work.right(row)]
        # The second completion of a draft is not a request.
        texts_of = [
            (row, text) for row, texts in outcomes for text in texts if not re.match("draft.*#1", text)
        ]
        needed = {(text, own[row]) for row, text in texts_of}
        most = _by_prompt(needed)
        written: dict[tuple[str, int | None], float] = {}
        of_process: dict[str, set[tuple[str, int | None]]] = {}
        for path, at in self.out.files().items():
            if path.startswith("_raybatch/parts/") and path.endswith(".parquet"):
                process = _PROCESS.search(path)
                table = pq.ParquetFile(io.BytesIO(self.out.read(path))).read(["ordinal", "output"])
                rows = [(own[row["ordinal"]], _texts(row["output"] or {})) for row in table.to_pylist()]
                for one in {(text, row) for row, texts in rows for text in texts} & needed:
                    written[one] = min(at, written.get(one, at))
                    of_process.setdefault(process[1] if process else "", set()).add(one)
        asked, in_flight, late, foreign = Counter[str](), Counter[str](), 0, 0
        for engine in engines(self.log):
            prompts = [prompt for prompt, _ in engine.asked if BAD not in prompt]
            known = Counter(filter(most.__contains__, prompts))
            asked, foreign = asked + known, foreign + len(prompts) - known.total()
            began = self.began[engine.submission]
            late += (known - (most - _by_prompt({one for one in written if written[one] < began}))).total()
            if not {(engine.submission, engine.pid), (engine.submission, None)}.isdisjoint(self.lost):
                in_flight += known - _by_prompt(of_process.get(str(engine.pid), set()))
        return {
            "asked": asked.total(),
            "in_flight": in_flight.total(),
            "equal": ((asked & most) - _by_prompt({(text, None) for text, _ in needed})).total(),
            "late": late,
            "unexplained": (asked - most - in_flight).total(),
            "foreign": foreign,
        }


def _by_prompt(requests: set[tuple[str, int | None]]) -> Counter[str]:
    """Count requests by the prompt in the engine's log, which leaves out adapters."""
    return Counter(_ADAPTER.sub("", text) for text, _ in requests)


def _texts(row: dict[str, Any]) -> set[str]:
    """Return all answers in a row of the dataset or of a part."""
    found = {value for name, value in row.items() if name.endswith("response") and value is not None}
    lists = [value or () for name, value in row.items() if name.endswith("completions")]
    return found | {one["text"] for completions in lists for one in completions}


def play(seed: int, version: str, lives: dict[str, float], cluster: str | None = None) -> dict[str, Any]:
    """Run the task of a seed until it succeeds or is stuck; return its line of the results.

    :param lives: by kind, seconds from which instants of kills are drawn. A job that ends before shortens
        them, and is run again; a kill makes them longer.
    """
    kind, chance = [*KINDS][seed % len(KINDS)], random.Random(seed)
    victim = VICTIMS[seed % len(VICTIMS)] if cluster else "job"
    root = Path(tempfile.mkdtemp(prefix="job-", dir="/tmp"))
    task, began, tries, succeeded = Task(seed, kind, root, cluster), time.monotonic(), 0, False
    for _ in range(chance.choice([1, 1, 2, 3])):
        kill_at, change_at = (lives[kind] * chance.random() for _ in range(2))
        succeeded = succeeded or task.attempt(victim, kill_at, change_at)
    while not succeeded and tries < _MOST:
        succeeded, tries = task.attempt(), tries + 1
    lives[kind] *= 1.1 if task.hits else 0.7
    line = {"seed": seed, "kind": kind, "real": cluster is not None, "version": version, "hits": task.hits}
    line |= {"seconds": round(time.monotonic() - began, 1), "attempts": len(task.began)}
    line |= {"failed": len(task.failures), "stuck": int(not succeeded), **task.rows(), **task.requests()}
    flaws = [f"{name}={line[name]}" for name in ZEROS if line[name]]
    flaws += [said for said in task.failures if not succeeded or said.startswith("internal")]
    if not flaws:
        shutil.rmtree(root)
        if not task.hits:
            return play(seed, version, lives, cluster)
    return {**line, "flaws": flaws, "failures": task.failures, "evidence": str(root) if flaws else ""}
