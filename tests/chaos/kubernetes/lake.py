# SPDX-License-Identifier: Apache-2.0
"""What the jobs on stand-in heads do: each writes the rows that no earlier job of the task has written."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_raybatch.contract.events import Committed
from tests.support.fake_ray import FakeRay, Script, summary
from tests.support.kubernetes.fast_heads import FastHeads
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.kubelet import Running

ROWS = 12
_PAUSE = 0.03
_FOR_EVER = 1e9


@dataclass
class Lake:
    """The rows of a task, and who wrote them.

    :ivar written: how often each row of a destination was written.
    :ivar jobs: all jobs so far, as name and head's session.
    :ivar lost: those of them that ended before they had written all rows.
    :ivar most_at_once: jobs that ran at the same time.
    """

    written: Counter[tuple[str, int]] = field(default_factory=Counter)
    jobs: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def script(self, ray: FakeRay, body: dict[str, Any]) -> Script:
        """A job that writes a row at a time, and then commits."""
        destination = str(ray.spec(body)["destination"])
        uri = f"{destination}/data/c1"
        done = ray.line(body, Committed(summary=summary(uri, ROWS, 0)))
        with self._lock:
            self.jobs.append(body["submission_id"])
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        threading.Thread(
            target=self._write, args=(ray, body["submission_id"], destination), daemon=True
        ).start()
        return Script(lines=["reading"], last=[done], seconds=_FOR_EVER)

    def _write(self, ray: FakeRay, name: str, destination: str) -> None:
        while name not in ray.jobs:
            time.sleep(0.001)
        job = ray.jobs[name]
        for row in range(ROWS):
            time.sleep(_PAUSE)
            with self._lock:
                if job.stopped or ray.jobs.get(name) is not job:
                    break
                self.written[destination, row] += (destination, row) not in self.written
        with self._lock:
            self.at_once -= 1
            ended = job.stopped or ray.jobs.get(name) is not job
        if ended:
            self.lost.append(name)
        else:
            job.end("SUCCEEDED")


class Heads(FastHeads):
    """Stand-in heads whose jobs die with them, and whose containers can be ended."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.script)
        self.crashed: set[str] = set()
        self._starts = 0
        self.clusters: set[str] = set()

    def start(self, pod: Manifest, env: Mapping[str, str]) -> None:
        super().start(pod, env)
        if (ray := self.heads.get(pod["metadata"]["uid"])) is not None:
            self._starts += 1
            self.clusters.add(pod["metadata"]["labels"]["ray.io/cluster"])
            ray.session_name = f"session_{self._starts}"

    def crash(self, uid: str) -> None:
        """End the container of a pod."""
        self.crashed.add(uid)

    def look(self, pod: Manifest) -> Running:
        if pod["metadata"]["uid"] in self.crashed:
            self.crashed.discard(pod["metadata"]["uid"])
            return Running(False, exit_code=137)
        return super().look(pod)

    def stop(self, pod: Manifest, *, killed: bool = False) -> Any:
        if (ray := self.heads.get(pod["metadata"]["uid"])) is not None:
            ray.jobs = {}
        with suppress(OSError):
            return super().stop(pod, killed=killed)
        return True
