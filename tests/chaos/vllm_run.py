# SPDX-License-Identifier: Apache-2.0
"""Three replicas with a real vLLM each; SIGKILL ends one engine in the middle of a run.

vLLM's own log counts its requests without their prompts, so repeated ones are bounded by the rows that a
replica may have in flight. Each row must have an answer of the model; its text is not checked.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ..integration.end_to_end.waiting import wait_for
from .places import Disk, Parts
from .version import Version
from .workload import Pace, delivered, write_source
from .world import World

_MODEL = Path(__file__).parents[2] / "dags_examples/demo_model/model"
_PATIENCE = 900.0
_TOKENS = 96
_ADDED = re.compile(rb"Added request \S+\.\n")


@dataclass(frozen=True)
class VllmRun:
    """The result of the run.

    :param asked: requests to vLLM's engines, by vLLM's own log.
    :param written: rows that were in parts at the kill.
    :param lost: input rows that are missing in the dataset, or without an answer.
    :param duplicated: rows after the first of each input row.
    """

    version: dict[str, str]
    replicas: int
    rows: int
    written: int
    asked: int
    may_in_flight: int
    lost: int
    duplicated: int
    submissions: int
    seconds: float

    @property
    def flaws(self) -> list[str]:
        """Violated promises; empty if all is well."""
        found = [f"{name}={n}" for name in ("lost", "duplicated") if (n := getattr(self, name))]
        if not self.rows <= self.asked <= self.rows + self.may_in_flight:
            found.append(f"asked={self.asked} of {self.rows}+{self.may_in_flight}")
        return found + (
            [] if 0 < self.written < self.rows else [f"killed when {self.written} rows were written"]
        )


def vllm_run(world: World, code: Version, replicas: int = 3, rows: int = 240) -> VllmRun:
    """Do one run, and kill one engine once some rows are written."""
    folder = Path(tempfile.mkdtemp(prefix="ch-", dir="/tmp"))
    pace = Pace(rows=rows, replicas=replicas, rows_in_flight=16, batch_size=8, flush_interval=0.2)
    write_source(folder, rows, 0)
    params = pace.params(folder) | {
        "engine": "vllm",
        "model": str(_MODEL),
        # No answer ends early, so that the run has a middle.
        "sampling": {"temperature": 0, "max_tokens": _TOKENS, "ignore_eos": True},
        "engine_args": {"enable_log_requests": True},
    }
    before = _asked(world)
    started = time.monotonic()
    dag_run = world.airflow.api.trigger("chaos_deferrable", **params)
    task = dag_run.task("infer")
    parts = Parts(Disk(folder / "destination"))

    def all_at_work() -> list[psutil.Process]:
        found = _engines(world)
        return found if len(found) == replicas and parts.all() else []

    engines = wait_for("parts of three engines", all_at_work, _PATIENCE, dag_run.evidence, 0.2)
    engines[0].kill()
    written = sum(len(part.prompts) for part in parts.all())
    dag_run.wait("success", timeout=_PATIENCE)
    out = delivered(task.xcom()["uri"])
    times = Counter(row["id"] for row in out if row["response"])
    result = VllmRun(
        version=asdict(code),
        replicas=replicas,
        rows=rows,
        written=written,
        asked=_asked(world) - before,
        may_in_flight=pace.rows_in_flight,
        lost=rows - len(times),
        duplicated=len(out) - len({row["id"] for row in out}),
        submissions=len(world.jobs.of(task)),
        seconds=round(time.monotonic() - started, 1),
    )
    shutil.rmtree(folder)
    return result


def _engines(world: World) -> list[psutil.Process]:
    """Return the engine processes on all worker nodes, by the name that vLLM gives them."""
    found = []
    for worker in world.cluster.workers:
        for process in world.cluster.processes_of(worker):
            try:
                if "EngineCore" in " ".join([process.name(), *process.cmdline()]):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
    return found


def _asked(world: World) -> int:
    logs = [log for home in world.cluster.homes() for log in home.glob("session_*/logs/worker-*")]
    return sum(len(_ADDED.findall(log.read_bytes())) for log in logs if not log.parent.parent.is_symlink())
