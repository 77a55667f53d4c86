# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_provider_raybatch.job.execution.kept [--end]``: the kept engines of a cluster."""

import argparse

import ray

from airflow_provider_raybatch.job.execution.kept.taking import kept

_ANSWER_SECONDS = 30.0

parser = argparse.ArgumentParser(prog="python -m airflow_provider_raybatch.job.execution.kept")
parser.add_argument("--end", action="store_true", help="end those that no job uses")
arguments = parser.parse_args()
ray.init("auto", log_to_driver=False, logging_level="ERROR")
found = False
for name, keeper in kept():
    try:
        state = ray.get(keeper.state.remote(), timeout=_ANSWER_SECONDS)
    except ray.exceptions.GetTimeoutError:
        print(f"{name}: waits for room on the cluster")
        continue
    except ray.exceptions.RayError:
        continue  # it has ended meanwhile
    found = True
    use = f"waits for {state['ends_in']} s more" if state["is_free"] else "in use"
    ends = arguments.end and state["is_free"]
    if ends:
        keeper.end.remote()
    print(f"{name}: {state['engine']}, {state['gpus']:g} GPUs, {use}{'; ending' if ends else ''}")
if not found:
    print("no engine is kept")
