# SPDX-License-Identifier: Apache-2.0
"""Rows in buckets on a Ray that loses two of its three nodes; prints the rows that a replica gets.

A program of its own, since a process has one Ray. Usage: ``lost_buckets.py FOLDER``
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.row_order import rows_to_do
from airflow_provider_raybatch.job.row_order.buckets import Gathered
from airflow_provider_raybatch.job.row_order.grouping import ByPrefix
from airflow_provider_raybatch.job.row_order.rows_to_do import input_of
from airflow_provider_raybatch.job.run.cpu_tasks import cut_in_tasks, on_this_node
from airflow_provider_raybatch.job.scheduling.messages import PullRequest
from airflow_provider_raybatch.job.scheduling.row_index import no_rows
from airflow_provider_raybatch.job.work import Job, work
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.sources import look_at_source
from tests.support.specs import submitted

BUCKET = 2 * 2**20
"""Bytes. Ray keeps smaller objects with their owner, where no other node can lose them."""
NAME = 8


def main(folder: Path) -> None:
    texts = [f"{document:0{NAME}d}{'x' * 4000} {number}" for document in range(500) for number in range(4)]
    random.Random(7).shuffle(texts)
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    others = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    spec = submitted(source=[str(source)], prompt="{row.text}", destination=str(folder / "out"))
    surveyed = look_at_source(spec)
    coordinator = begun(spec, surveyed)
    for node in others:
        cluster.remove_node(node, allow_graceful=False)
    found = [texts.index(text) for text in taken(coordinator, Reader(surveyed.listing, None, None))]
    names = [texts[row][:NAME] for row in found]
    print(json.dumps({"rows": found, "changes": sum(map(str.__ne__, names, names[1:]))}))
    ray.shutdown()
    cluster.shutdown()


def begun(spec: Any, source: Source) -> Any:
    """Return a coordinator that has all rows in buckets, and is the only one to have them."""
    job = Job(spec, source.listing, LocalFolder(spec.destination), "parts/0", Keyer(spec, {}, Digests()))
    rows_to_do._AT_ONCE_BYTES = BUCKET
    resolved = np.zeros(source.rows, np.bool_)
    grouping = ByPrefix(2000, math.ceil(source.listing.files[0].size / BUCKET))
    todo = rows_to_do.regrouped(
        job, work(source, 250, resolved), input_of(source, resolved), grouping, cut_in_tasks
    )
    assert len(todo.chunks) > 1
    coordinator: Any = ray.remote(**on_this_node())(Coordinator).remote(job.folder)
    ray.get(coordinator.begin.remote(todo, "parts/0", 1, []))
    ray.get(coordinator.start.remote("actor", "process"))
    ray.get(coordinator.join.remote("process", 64))
    return coordinator


def taken(coordinator: Any, reader: Reader) -> list[str]:
    """Return the texts of all rows, as a replica gets them."""
    texts: list[str] = []
    rows = no_rows()
    while True:
        assignment = ray.get(coordinator.pull.remote("process", PullRequest(len(texts), 0.0, rows)))
        if assignment.is_finished:
            return texts
        rows = assignment.rows
        for bucket in assignment.chunks.values():
            inside = rows[(rows >= bucket.ordinal) & (rows < bucket.ordinal + bucket.rows)] - bucket.ordinal
            gathered = Gathered(ray.get(list(bucket.slices)))
            found = gathered.rows(reader, bucket.ordinals[inside].astype(np.int64))
            texts += [read.rows[place]["text"] for read, place, _ in found]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
