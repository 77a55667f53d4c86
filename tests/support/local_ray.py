# SPDX-License-Identifier: Apache-2.0
"""A Ray in this process, so that a job can run here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.ray_processes import ray_processes

_STARTS = 4


def start_ray(cpus: int, gpus: int = 0, **options: Any) -> None:
    """Start a Ray that is this process's own, with so many CPUs and GPUs, whatever the machine has.

    Ray gives its own start half a minute, which passes on a busy machine: then it is tried again.
    """
    import ray

    for number in range(1, _STARTS + 1):
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                num_gpus=gpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                **options,
            )
        except Exception as error:
            ray.shutdown()
            if number == _STARTS or "timed out during startup" not in str(error):
                raise
        else:
            return


@contextmanager
def local_ray() -> Iterator[Any]:
    """Start a Ray of 2 CPUs, or go on with the one that this process has."""
    import ray

    if ray.is_initialized():
        yield ray
        return
    # Of processes beyond the CPUs, which the tasks that load images are given. Ray would end them after a
    # second, and start others for the next job.
    start_ray(2, _system_config={"num_workers_soft_limit": 6})
    for process, command in ray_processes().items():
        if "log_monitor.py" in command:
            process.terminate()  # it reads all that workers write, for drivers that want it
    yield ray
    ray.shutdown()
