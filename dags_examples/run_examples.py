# SPDX-License-Identifier: Apache-2.0
"""The program of ``make examples``: runs the three workflows for two nights each, from S3 to S3 with vLLM.

One private Ray serves all of them. The S3 server (moto) runs in this process; at the end, its bucket is
copied to ``.demo/lake``. The first night has 40 documents fewer than the second one. Prints a table.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import run_demo as demo

BUCKET = "lake"
LAKE = demo.HOME / BUCKET
DATA = demo.EXAMPLES / "data"
LATE_DOCUMENTS = 40
# The report at the end of a night, by DAG.
REPORTS = {
    "nightly_synthetic_data": "card.json",
    "data_curation": "card.json",
    "model_evaluation": "comparison.json",
}


@dataclass(frozen=True)
class Night:
    """The figures of a run, from its reports and manifests.

    :param rows: rows at the start; for an evaluation, answered questions.
    :param accepted: rows in the end; for an evaluation, the promoted model.
    :param tokens: input and output tokens of requests that reached the model.
    """

    dag_id: str
    rows: int
    accepted: str
    tokens: int
    seconds: float
    report: str


def night_of(dag_id: str, written: Mapping[str, bytes], seconds: float) -> Night:
    """Read the figures of a run.

    :param written: the run's objects by key.
    """
    documents = {key: json.loads(body) for key, body in written.items() if key.endswith(".json")}
    runs = [one for key, one in documents.items() if key.endswith("/manifest.json") and "replicas" in one]
    tokens = sum(one["input_tokens"] + one["output_tokens"] for run in runs for one in run["replicas"])
    (report,) = (key for key in documents if key.endswith(f"/{REPORTS[dag_id]}"))
    found = documents[report]
    if funnel := found.get("funnel"):
        rows, accepted = funnel[0]["rows"], f"{funnel[-1]['rows']:,}"
    else:
        rows = sum(run["counts"]["ok"] for run in runs if run["owner"]["task_id"] == "answer")
        accepted = found["decision"]["promoted"] or "none"
    return Night(dag_id, rows, accepted, tokens, seconds, report)


def table(nights: list[Night]) -> str:
    """Return a table with a line for each run."""
    head = ("DAG", "night", "rows", "accepted", "tokens", "seconds", "report")
    lines, seen = [], dict[str, int]()
    for night in nights:
        seen[night.dag_id] = number = seen.get(night.dag_id, 0) + 1
        figures = (f"{night.rows:,}", night.accepted, f"{night.tokens:,}", f"{night.seconds:.0f}")
        lines.append((night.dag_id, str(number), *figures, f"{LAKE}/{night.report}"))
    widths = [max(len(line[place]) for line in (head, *lines)) for place in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *lines)
    )


class Bucket:
    """The S3 server's bucket."""

    def __init__(self, url: str) -> None:
        import boto3

        self.connection = {
            "conn_type": "aws",
            "login": "key",
            "password": "secret",
            "extra": {"endpoint_url": url, "region_name": "us-east-1"},
        }
        self._s3: Any = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        self._s3.create_bucket(Bucket=BUCKET)

    def put(self, key: str, body: bytes) -> None:
        """Write an object."""
        self._s3.put_object(Bucket=BUCKET, Key=key, Body=body)

    def versions(self) -> dict[str, str]:
        """Return the ETag of each key."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return {one["Key"]: one["ETag"] for page in pages for one in page.get("Contents", ())}

    def get(self, key: str) -> bytes:
        """Return an object's content."""
        body: bytes = self._s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return body


@contextmanager
def serving() -> Iterator[Bucket]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise it logs a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield Bucket(f"http://{host}:{port}")
    finally:
        server.stop()


def put_data(bucket: Bucket, late: int = 0) -> None:
    """Put topics, questions and documents, without the last ones of the documents' last source."""
    for path in sorted(DATA.rglob("*.jsonl")):
        lines = path.read_bytes().splitlines(keepends=True)
        if late and path.name == "library.jsonl":
            lines = lines[:-late]
        bucket.put(f"data/{path.relative_to(DATA)}", b"".join(lines))


def run(dag_id: str, bucket: Bucket, settings: Mapping[str, str]) -> Night:
    """Run one night."""
    before, began = bucket.versions(), time.monotonic()
    demo.announce(f"airflow dags test {dag_id}")
    for line in demo.airflow("dags", "test", dag_id, settings=settings):
        demo.show_event(line, began)
    written = {key: bucket.get(key) for key, tag in bucket.versions().items() if before.get(key) != tag}
    return night_of(dag_id, written, time.monotonic() - began)


def settings_for(bucket: Bucket, ray: Any) -> dict[str, str]:
    example = {
        "SOURCE": "data/topics.jsonl",
        "OUTPUT": "questions",
        "DOCUMENTS": "data/documents",
        "CORPUS": "corpus",
        "BENCHMARK": "data/questions.jsonl",
        "EVALUATION": "evaluation",
    }
    host, _, port = ray.url.removeprefix("http://").partition(":")
    return {
        "AIRFLOW_CONN_LAKE": json.dumps(bucket.connection),
        "AIRFLOW_CONN_RAY_DEFAULT": json.dumps({
            "conn_type": "ray",
            "host": host,
            "port": int(port),
            "password": ray.token,
        }),
        "RAYBATCH_EXAMPLE_AWS_CONN_ID": BUCKET,
        **{f"RAYBATCH_EXAMPLE_{name}": f"s3://{BUCKET}/{key}" for name, key in example.items()},
    }


def main() -> None:
    began = time.monotonic()
    demo.check_machine()
    demo.HOME.mkdir(exist_ok=True)
    demo.LOG.write_text("", encoding="utf-8")
    demo.WAREHOUSE.unlink(missing_ok=True)
    demo.prepare_airflow()

    from airflow_provider_raybatch.cluster.local.head import RayHead

    demo.announce(f"starting Ray   (Airflow's whole output: {demo.LOG})")
    names = ("HF_HUB_OFFLINE", "VLLM_CPU_KVCACHE_SPACE", "VLLM_NO_USAGE_STATS")
    with serving() as bucket, RayHead({name: demo.environment()[name] for name in names}) as ray:
        settings, nights = settings_for(bucket, ray), []
        for late in (LATE_DOCUMENTS, 0):
            put_data(bucket, late)
            nights += [run(dag_id, bucket, settings) for dag_id in REPORTS]
        keep(bucket.versions(), bucket.get)
    print(table(sorted(nights, key=lambda night: list(REPORTS).index(night.dag_id))))
    print(f"{time.monotonic() - began:.0f} s in all; the bucket is in {LAKE}")


def keep(keys: Mapping[str, str], get: Callable[[str], bytes]) -> None:
    """Copy the bucket to :data:`LAKE`, which is replaced."""
    shutil.rmtree(LAKE, ignore_errors=True)
    for key in keys:
        path = LAKE / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(get(key))


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        main()
    except KeyboardInterrupt:
        demo.give_up("interrupted.")
