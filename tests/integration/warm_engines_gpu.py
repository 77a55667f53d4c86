# SPDX-License-Identifier: Apache-2.0
"""Warm engines on a Ray with two GPUs, which are only numbers; prints what it saw.

A program of its own, since a process has one Ray. Usage: ``warm_engines_gpu.py FOLDER SCENE...``, or, for one
job beside the others, ``warm_engines_gpu.py FOLDER --job ADDRESS RUN``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.util import placement_group, remove_placement_group

from airflow_provider_raybatch.contract.manifest import BatchManifest
from tests.support.engine_log import Engine, engines
from tests.support.local_ray import start_ray
from tests.support.repeated_task import RepeatedTask
from tests.support.warm_engines import end_all, warm_engines

ON_A_GPU = {"tensor_parallel_size": 1, "max_num_seqs": 8, "seconds_per_token": 0.05}
SLOW = {**ON_A_GPU, "seconds_per_token": 0.4}
"""Forty rows of two words: four seconds."""
ALONE = {"keep_warm": 600, "replicas": 1, "engine_args": ON_A_GPU}
ROWS = [f"text {number}" for number in range(40)]


@ray.remote(num_cpus=0, num_gpus=1)
def gpu() -> str:
    return "a GPU"


@ray.remote(num_cpus=0, num_gpus=1)
class Others:
    """What has a GPU until it is ended."""

    def works(self) -> bool:
        return True


def others() -> Any:
    actor = Others.remote()
    ray.get(actor.works.remote(), timeout=60)
    return actor


def free() -> float:
    return ray.available_resources().get("GPU", 0.0)


def gpus(manifest: BatchManifest) -> list[str]:
    return sorted(gpu for replica in manifest.replicas for gpu in replica.gpus)


def until(happens: Callable[[], Any], seconds: float = 60.0) -> Any:
    ends = time.monotonic() + seconds
    while not (seen := happens()):
        assert time.monotonic() < ends, (happens, warm_engines())
        time.sleep(0.1)
    return seen


class Scenes:
    """Each begins and ends without engines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task = RepeatedTask(folder)
        self.task.input(ROWS)
        self.runs = 0

    def made(self, **fields: Any) -> BatchManifest:
        """Run a job, and return its manifest."""
        self.runs += 1
        return self.task.run(f"token {self.runs}", run_id=f"r{self.runs}", **{**ALONE, **fields})

    def run(self, **fields: Any) -> int:
        """Run a job, and return the number of its good rows."""
        return self.made(**fields).counts.ok

    def longer(self) -> Iterator[None]:
        """Rows that last longer each time, until the second replica has its own, also on a busy host."""
        for words in (20, 80, 320):
            self.task.input([f"{number} {'word ' * words}" for number in range(16)])
            yield

    def both(self, **fields: Any) -> None:
        """Keep two engines."""
        for _ in self.longer():
            self.run(replicas=2, **fields)
            if sum(state is not None and state.is_free for state in warm_engines().values()) == 2:
                break
        self.task.input(ROWS)
        until(lambda: sum(state is not None and state.is_free for state in warm_engines().values()) == 2)

    def engines(self) -> list[Engine]:
        return sorted(engines(self.folder / "requests"), key=lambda engine: engine.opened)

    def ended(self) -> None:
        end_all()
        until(lambda: not warm_engines() and free() == 2)

    def own_engines_name_their_gpus(self) -> list[Any]:
        found: list[str] = []
        for _ in self.longer():
            found = found if len(found) == 2 else gpus(self.made(replicas=2, keep_warm=None))
        self.task.input(ROWS)
        return found

    def both_stay_warm(self) -> list[Any]:
        self.both()
        return [free(), len(warm_engines())]

    def two_share_the_rows(self) -> list[Any]:
        """All rows fit into one engine, which can't give them back.

        Each takes eight seconds, in which the second replica comes, also on a busy host.
        """
        wide = {**SLOW, "max_num_seqs": 64}
        self.both(engine_args=wide)
        before = len(self.engines())
        self.task.input([f"{text} {'word ' * 18}" for text in ROWS])
        manifest = self.made(replicas=2, engine_args=wide)
        seen = [sorted(len(engine.asked) for engine in self.engines()[before:]), gpus(manifest)]
        self.ended()
        self.task.input(ROWS)
        return seen

    def one_makes_room_for_a_task(self) -> list[Any]:
        self.both()
        got = ray.get(gpu.remote(), timeout=120)
        time.sleep(5)  # in which the other one could see the same request
        return [got, len(warm_engines())]

    def a_placement_group_finds_room_as_a_whole(self) -> list[Any]:
        """One of three GPUs is no reason to end an engine on two."""
        self.both()
        groups = [placement_group([{"GPU": 1}] * 3)]
        time.sleep(12)  # in which they make room for what fits
        seen = [len(warm_engines())]
        groups.append(placement_group([{"GPU": 1}] * 2))
        ray.get(groups[1].ready(), timeout=120)
        seen.append(len(warm_engines()))
        for group in groups:
            remove_placement_group(group)
        until(lambda: free() == 2)
        return seen

    def another_engine_finds_room(self) -> list[Any]:
        self.run()
        self.run(replicas=2, engine_args={**SLOW, "max_num_seqs": 2})
        kinds = [name.split(":")[1] for name in warm_engines()]
        self.ended()
        return [len(kinds), len(set(kinds))]

    def a_job_waits_for_its_like_and_takes_it(self) -> list[Any]:
        """Both GPUs are in use; the other job's engine is the one that it waits for."""
        other_gpu = others()
        before = len(self.engines())
        address = ray.get_runtime_context().gcs_address
        command = [sys.executable, __file__, str(self.folder), "--job", address, "other"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as other:
            until(lambda: len(self.engines()) > before, 180)
            self.run(engine_args=SLOW)
            assert other.wait(60) == 0
        pids = {engine.pid for engine in self.engines()[before:]}
        seen = [len(pids), len(warm_engines())]
        ray.kill(other_gpu)
        self.ended()
        return seen

    def one_that_waits_in_vain_is_ended(self) -> list[Any]:
        """The second replica finds no GPU until the first has done all rows."""
        other_gpu = others()
        until(lambda: free() == 1)
        self.run(replicas=2)
        names = set(warm_engines())
        ray.kill(other_gpu)
        end_all()
        until(lambda: not names & warm_engines().keys())
        seen = [len(names)]
        time.sleep(5)  # in which Ray would start the one that waited
        seen.append(len(warm_engines()))
        self.ended()
        return seen

    def one_that_starts_when_its_job_ends_is_the_next_ones(self) -> list[Any]:
        """Else jobs shorter than its start never have a second one."""
        slow_start = {**SLOW, "startup_seconds": 20.0}
        self.run(engine_args=slow_start)
        seen = [len(warm_engines())]
        before = len(self.engines())
        self.task.input([f"{text} word word word" for text in ROWS])  # ten seconds
        self.run(replicas=2, engine_args=slow_start)
        seen.append(len(self.engines()[before:]))
        until(lambda: sum(state is not None and state.is_free for state in warm_engines().values()) == 2)
        first, second = self.engines()[before:]
        seen.append([len(first.asked), len(second.asked)])
        seen.append(gpus(self.made(replicas=2, engine_args=slow_start)))
        seen.append(len({engine.pid for engine in self.engines()[before:]}))
        self.ended()
        self.task.input(ROWS)
        return seen

    def a_replica_that_dies_leaves_its_engine_to_no_one(self) -> list[Any]:
        before = len(self.engines())
        killer = threading.Thread(target=self._kill_replica, args=(before,))
        killer.start()
        rows = self.run(engine_args=SLOW)
        killer.join()
        first, *_, last = self.engines()[before:]
        seen = [len({engine.pid for engine in self.engines()[before:]}), rows == 40, len(warm_engines())]
        assert first.pid != last.pid
        self.ended()
        return seen

    def _kill_replica(self, before: int) -> None:
        until(lambda: len(self.engines()) > before and self.engines()[-1].asked)
        os.kill(self._pids("MapWorker(MapBatches(Replica(")[0], signal.SIGKILL)

    def an_engine_that_is_lost_while_it_starts(self) -> list[Any]:
        before = len(self.engines())
        killer = threading.Thread(target=self._kill_actor)
        killer.start()
        rows = self.run(engine_args={**ON_A_GPU, "startup_seconds": 8.0})
        killer.join()
        seen = [1 + len(self.engines()[before:]), rows]
        self.ended()
        return seen

    def _kill_actor(self) -> None:
        until(lambda: any(state is not None and not state.is_free for state in warm_engines().values()))
        time.sleep(1)
        os.kill(self._pids("WarmEngineActor")[0], signal.SIGKILL)

    def _pids(self, name: str) -> list[int]:
        """Processes whose title says that they are this actor's, on this Ray alone."""
        import psutil

        return [
            child.pid
            for child in psutil.Process().children(recursive=True)
            if name in " ".join(child.cmdline()) and "ray::" in " ".join(child.cmdline())
        ]


def job(folder: Path, run: str) -> None:
    """One job beside the others."""
    task = RepeatedTask(folder)
    task.run(run, run_id=run, **{**ALONE, "engine_args": SLOW})


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if sys.argv[2] == "--job":
        ray.init(address=sys.argv[3], log_to_driver=False, logging_level="error")
        job(place, sys.argv[4])
    else:
        start_ray(cpus=3, gpus=2)
        scenes = Scenes(place)
        print(json.dumps({name: getattr(scenes, name)() for name in sys.argv[2:]}))
