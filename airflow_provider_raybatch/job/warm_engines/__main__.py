# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_provider_raybatch.job.warm_engines [--end]``: the warm engines of a cluster."""

import argparse
import contextlib
import time

import ray

from airflow_provider_raybatch.contract.text import write_utf8
from airflow_provider_raybatch.job.planning.node_groups import gpus_in_words
from airflow_provider_raybatch.job.warm_engines.registry import WarmEngineRegistry

_ANSWER_SECONDS = 30.0

parser = argparse.ArgumentParser(prog="python -m airflow_provider_raybatch.job.warm_engines")
parser.add_argument("--end", action="store_true", help="end those that no job uses")
arguments = parser.parse_args()
write_utf8()
ray.init("auto", log_to_driver=False, logging_level="ERROR")
registry = WarmEngineRegistry()
states = listed = registry.states()
while arguments.end and registry.ownerless:  # it ends those that do not answer within half a minute
    time.sleep(1.0)
    states = registry.states()
for name in sorted(listed.keys() - states.keys()):
    print(f"{name}: it waited for a job that is gone; ended")
for name, state in sorted(states.items()):
    if state is None:
        print(f"{name}: waits for room on the cluster, or does not answer")
        continue
    if state.is_free:
        use = f"idle, ends in {state.ends_in:.0f} s unless a job takes it"
    else:
        use = "in use" if state.is_used else "ending" if state.is_ending else "starts, or comes to rest"
    if arguments.end:
        with contextlib.suppress(ray.exceptions.RayError):  # it has ended meanwhile
            if ray.get(registry.actor(name).end_if_free.remote(), timeout=_ANSWER_SECONDS):
                use += "; ending"
    print(f"{state.title}, {gpus_in_words(state.amounts.get('GPU', 0))}: {use} [{name}]")
if not listed:
    print("no warm engine")
