# SPDX-License-Identifier: Apache-2.0
"""One job as ``RayBatchInferenceOperator`` submits it, on the cluster of ``RAY_ADDRESS``, without tuning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Task:
    """A task of a DAG run, whose attempts are jobs.

    :param source: a folder of rows that `workloads.py` has made.
    :param model: folder of the model.
    :param out: folder of destination and specs.
    :param fields: further fields of the spec.
    """

    source: Path
    model: Path
    out: Path
    fields: dict[str, Any]
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    attempts: int = 0

    @property
    def destination(self) -> Path:
        """The task's own destination, in `out`."""
        return self.out / self.token

    def start(self, stdout: int | None = None) -> subprocess.Popen[str]:
        """Start the driver of another attempt."""
        spec = {
            "source": [str(self.source)],
            "messages_column": "messages",
            "model": str(self.model),
            "sampling_column": "sampling",
            "destination": str(self.destination),
            "submission": {
                "task": {"dag_id": "benchmark", "run_id": self.token, "task_id": self.source.name},
                "run_token": self.token,
                "submission_id": f"raybatch-{self.token[:24]}-{self.attempts}",
            },
            **self.fields,
        }
        self.attempts += 1
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{self.token}.json"
        path.write_text(json.dumps(spec))
        command = [sys.executable, "-m", "airflow_provider_raybatch.job", str(path)]
        return subprocess.Popen(command, stdout=stdout, text=True)

    def run(self) -> dict[str, Any]:
        """Run another attempt to its end; return the manifest."""
        if self.start().wait() != 0:
            raise SystemExit(f"{self.destination}: the job failed; see its last event above")
        return self.manifest()

    def manifest(self) -> dict[str, Any]:
        """Return the manifest of the last commit."""
        document: dict[str, Any] = json.loads((self.destination / "manifest.json").read_text())
        return document


def start_cluster(**options: Any) -> None:
    """Start a Ray that ends with this process, for jobs to run on."""
    import ray

    context = ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **options)
    os.environ["RAY_ADDRESS"] = context.address_info["address"]


def planned(source: Path) -> dict[str, int]:
    """Return the numbers of rows and tokens of a workload."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(source, columns=["prompt_tokens", "max_tokens"])
    total = {"input": pc.sum(table["prompt_tokens"]).as_py(), "output": pc.sum(table["max_tokens"]).as_py()}
    return {"rows": table.num_rows, **total}
